/** The requests of a component: no answer reaches a component that was destroyed. */

import { onDestroy } from "svelte";
import * as api from "./api";

/**
 * The requests of the component that calls this while it begins.
 *
 * When the component is destroyed, what it reads is aborted, and no code that waits for an answer
 * runs any more: such code would read values that Svelte no longer derives, or write the address of
 * another room. What changes something (POST, PUT, DELETE) reaches the server all the same, unless
 * it is sent with `signal` or one of its own.
 */
export function componentRequests() {
  const end = new AbortController();
  onDestroy(() => end.abort());
  const { signal } = end;

  /** The same answer, or none at all once the component is destroyed. */
  function untilEnd<T>(answer: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      answer.then(
        (value) => signal.aborted || resolve(value),
        (error) => signal.aborted || reject(error),
      );
    });
  }

  function withEnd(other?: AbortSignal): AbortSignal {
    return other ? AbortSignal.any([signal, other]) : signal;
  }

  return {
    /** Aborted when the component is destroyed. */
    signal,
    get<T>(path: string, other?: AbortSignal): Promise<T> {
      return untilEnd(api.get<T>(path, withEnd(other)));
    },
    getBytes(path: string, other?: AbortSignal) {
      return untilEnd(api.getBytes(path, withEnd(other)));
    },
    stream<T>(path: string, body: unknown, onLine: (line: T) => void, other?: AbortSignal): Promise<void> {
      const deliver = (line: T) => signal.aborted || onLine(line);
      return untilEnd(api.stream<T>(path, body, deliver, withEnd(other)));
    },
    post<T>(path: string, body?: unknown, other?: AbortSignal): Promise<T> {
      return untilEnd(api.post<T>(path, body, other));
    },
    put<T>(path: string, body: unknown): Promise<T> {
      return untilEnd(api.put<T>(path, body));
    },
    remove<T>(path: string): Promise<T> {
      return untilEnd(api.remove<T>(path));
    },
  };
}
