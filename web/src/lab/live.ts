/** The changes of the lab's runs as they happen: nothing is missed, also after a pause. */

import { onDestroy } from "svelte";
import { events, withQuery } from "./api";

export type Change =
  | { kind: "run"; run: { name: string; status: string }; is_replaced: boolean }
  | { kind: "rows"; run: string; first: number; rows: Record<string, unknown>[] }
  | { kind: "gone"; run: string }
  | { kind: "study"; study: string }
  | { kind: "queue" }
  | { kind: "reset"; cursor: string };

const RETRY = 2000;

/**
 * Call `onChange` for every change after the cursor until the returned function is called.
 *
 * A page that is not seen closes its connection, since a browser has few for one server, and goes
 * on from its cursor when it is seen again.
 */
export function follow(
  cursor: string,
  onChange: (change: Change) => void,
  onState: (isConnected: boolean) => void = () => {},
): () => void {
  let close: (() => void) | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;

  function handle(kind: Change["kind"]) {
    return (data: unknown, id: string) => {
      cursor = id || cursor;
      onChange({ kind, ...(data as object) } as Change);
    };
  }

  function open() {
    stop();
    if (document.hidden) return;
    const kinds = ["run", "rows", "gone", "study", "queue", "reset"] as const;
    const handlers = Object.fromEntries(kinds.map((kind) => [kind, handle(kind)]));
    close = events(withQuery("/api/events", { cursor }), handlers, (isConnected) => {
      onState(isConnected);
      clearTimeout(timer);
      // The browser itself tries again only while the server refuses nothing.
      if (!isConnected) timer = setTimeout(open, RETRY);
    });
  }

  function stop() {
    clearTimeout(timer);
    close?.();
    close = null;
  }

  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    document.removeEventListener("visibilitychange", open);
    stop();
  };
}

/**
 * A function that calls another at most once in a while, and not before the last call has ended.
 * It is made while a component begins, and calls nothing after the component is destroyed.
 */
export function throttled(call: () => Promise<void>, pause = 700): () => void {
  let isWaiting = false;
  let isWanted = false;
  let timer = 0;
  onDestroy(() => clearTimeout(timer));
  return function ask() {
    if (isWaiting) {
      isWanted = true;
      return;
    }
    isWaiting = true;
    timer = window.setTimeout(async () => {
      await call().catch(() => {}); // the call shows its own errors
      isWaiting = false;
      if (isWanted) {
        isWanted = false;
        ask();
      }
    }, pause);
  };
}
