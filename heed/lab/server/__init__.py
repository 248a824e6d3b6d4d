"""The server of trained runs: `heed serve`, in the shapes of LibreTranslate and OpenAI."""
