/** The address of the page: its path chooses the room, its query holds what is worth a bookmark. */

import { withQuery } from "./api";

type Query = Record<string, string | number | boolean | null | undefined>;

class Router {
  path = $state(location.pathname);
  query = $state.raw(new URLSearchParams(location.search));

  /** The run and the text that were chosen last, in whatever room: the next room begins with them. */
  chosen = $state.raw<{ run: string; text: string }>({
    run: this.query.get("run") ?? "",
    text: this.query.get("text") ?? "",
  });

  constructor() {
    addEventListener("popstate", () => this.read());
  }

  /** Go to an address of the lab, as a link does. */
  go(address: string, { replace = false } = {}) {
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    this.read();
  }

  /** Change some values of the query and keep the others; null removes one. */
  setQuery(changes: Query, { replace = true } = {}) {
    const merged: Query = { ...Object.fromEntries(this.query), ...changes };
    this.go(withQuery(this.path, merged), { replace });
  }

  /** Note what a room has chosen, for the others. */
  choose(choice: { run?: string; text?: string }) {
    const next = { ...this.chosen, ...choice };
    if (next.run !== this.chosen.run || next.text !== this.chosen.text) this.chosen = next;
  }

  /** Follow a link of the lab without loading the page again. */
  follow(event: MouseEvent) {
    const link = (event.target as Element).closest("a");
    const isPlain = event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
    if (!link || !isPlain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
    if (link.origin !== location.origin || link.pathname.startsWith("/api/")) return;
    if (link.hash && link.pathname === location.pathname && link.search === location.search) return;
    event.preventDefault();
    this.go(link.pathname + link.search + link.hash);
  }

  private read() {
    this.path = location.pathname;
    this.query = new URLSearchParams(location.search);
  }
}

export const router = new Router();
