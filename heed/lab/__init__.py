"""The lab in the browser, and the server for models: applications on the loopback address.

FastAPI and uvicorn come with the extra `lab`; nothing here is imported before a command needs it.
"""
