/** Labels of tokens: what is printed for them and how wide it is. */

import type { Label } from "./attention";

let context: CanvasRenderingContext2D | null = null;

/** A token's text with its white space made visible; nothing at all reads as an empty token. */
export function printedText(text: string): string {
  return text.trim().replace(/\s+/g, " ") || (text ? "␣" : "∅");
}

/** The width of the widest label in pixels, at most `limit`. */
export function widestLabel(labels: Label[], font: string, limit: number): number {
  context ??= document.createElement("canvas").getContext("2d")!;
  context.font = font;
  let widest = 0;
  for (const label of labels) {
    // A text of this many characters is wider than any limit; measuring all of it takes long.
    widest = Math.max(widest, context.measureText(printedText(label.text).slice(0, 80)).width);
    if (widest >= limit) return limit;
  }
  return Math.ceil(widest);
}
