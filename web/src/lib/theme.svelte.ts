/** The theme of the page: the reader's choice, else the system's; print is always light. */

import type { Theme } from "./colors";

export type ThemeChoice = "auto" | Theme;

const dark = matchMedia("(prefers-color-scheme: dark)");

class PageTheme {
  choice = $state<ThemeChoice>("auto");
  isPrinting = $state(false);
  private systemIsDark = $state(dark.matches);

  constructor() {
    dark.addEventListener("change", () => (this.systemIsDark = dark.matches));
  }

  readonly current = $derived.by<Theme>(() => {
    if (this.isPrinting) return "light";
    if (this.choice !== "auto") return this.choice;
    return this.systemIsDark ? "dark" : "light";
  });
}

export const theme = new PageTheme();
