/** Attention maps on the lab's server: one head at a time, and small pictures of all. */

import { SvelteMap } from "svelte/reactivity";
import {
  buildMap,
  decodeBytes,
  type AttentionMap,
  type AttentionMaps,
  type HeadSource,
  type Kind,
  type Pictures,
} from "../../lib/attention";
import { ApiError, getBytes, isAbort, readBytes, withQuery } from "../api";

const MOST_BYTES = 96 * 1024 * 1024; // of heads that are kept in the page

/** The answer of `POST /api/attention`. */
export interface MapsAnswer extends Omit<AttentionMaps, "maps"> {
  key: string;
  maps: any[];
  /** How many tokens were read of a text that is too long. */
  cut?: { read: number; of: number } | null;
}

/** A text, and the weights of a run to read it with. */
export interface TextBody {
  run: string;
  weights: string;
  text: string;
  target: string | null;
}

/** The maps of an answer; `onfail` hears of a head that cannot be fetched. `signal` ends all that is being fetched. */
export function openMaps(
  answer: MapsAnswer,
  onfail: (error: unknown) => void,
  signal?: AbortSignal,
): AttentionMaps {
  const maps = answer.maps.map((data) => {
    const [rows, columns] = [data.query_tokens.length, data.key_tokens.length];
    const source = new RemoteHeads(answer.key, data.kind, data.heads, 4 * rows * columns, onfail, signal);
    return buildMap(data, unpackBits(data.visible, rows * columns), source);
  });
  return { ...answer, maps };
}

/** Bits in base64, one after the other without gaps. */
function unpackBits(base64: string, count: number): Uint8Array {
  const bytes = decodeBytes(base64);
  const bits = new Uint8Array(count);
  for (let i = 0; i < count; i++) bits[i] = (bytes[i >> 3] >> (7 - (i & 7))) & 1;
  return bits;
}

/** The heads of one kind of attention, fetched when they are wanted, and their neighbors after. */
class RemoteHeads implements HeadSource {
  private heads = new SvelteMap<string, Float32Array>();
  private drawn = new SvelteMap<string, Pictures>();
  private pending = new Map<string, Promise<void>>();
  private most: number;
  /** Resolved when the first head is here and drawn, or cannot be had. */
  private first: Promise<void>;
  private noteFirst!: () => void;

  constructor(
    private key: string,
    private kind: Kind,
    private counts: number[],
    bytes: number,
    private onfail: (error: unknown) => void,
    private signal?: AbortSignal,
  ) {
    this.most = Math.max(12, Math.floor(MOST_BYTES / Math.max(1, bytes)));
    this.first = new Promise((resolve) => (this.noteFirst = resolve));
  }

  weights(layer: number, head: number): Float32Array | undefined {
    return this.heads.get(`${layer}/${head}`);
  }

  pictures(scale: "one" | "row"): Pictures | undefined {
    const pictures = this.drawn.get(scale);
    // The head that is shown comes first: it and the pictures are computed by the same cores.
    if (!pictures) void this.first.then(() => this.loadPictures(scale));
    return pictures;
  }

  want(layer: number, head: number) {
    this.load(layer, head).then(async () => {
      await afterPaint();
      this.noteFirst();
      // The arrow keys lead to these next.
      const neighbors = [[layer, head + 1], [layer + 1, head], [layer, head - 1], [layer - 1, head]];
      for (const [l, h] of neighbors) if (h >= 0 && h < this.countIn(l)) void this.load(l, h);
    });
  }

  private countIn(layer: number): number {
    const heads = this.counts[layer] ?? 0;
    return heads > 1 ? heads + 1 : heads;
  }

  private async load(layer: number, head: number) {
    const name = `${layer}/${head}`;
    if (this.heads.has(name)) return;
    await this.once(name, async () => {
      const query = { kind: this.kind, layer, head: head < this.counts[layer] ? head : "mean" };
      const { content } = await getBytes(this.address("head", query), this.signal);
      this.heads.set(name, new Float32Array(content));
      const oldest = this.heads.keys();
      while (this.heads.size > this.most) this.heads.delete(oldest.next().value!);
    });
  }

  private loadPictures(scale: "one" | "row") {
    if (this.drawn.has(scale)) return;
    void this.once(scale, async () => {
      const address = this.address("pictures", { kind: this.kind, scale });
      // They come layer by layer, while the server computes the next ones.
      await readBytes(address, (content, headers) => {
        const [, rows, columns] = headers.get("X-Shape")!.split(",").map(Number);
        this.drawn.set(scale, { rows, columns, levels: content });
      }, this.signal).catch((error) => {
        // A layer that cannot be computed ends the stream; its heads say why.
        if (!this.drawn.has(scale)) throw error;
      });
    });
  }

  /** Fetch something, or wait for it if it is being fetched already. */
  private once(name: string, fetchIt: () => Promise<void>): Promise<void> {
    let fetching = this.pending.get(name);
    if (!fetching) {
      fetching = fetchIt()
        .catch((error) => {
          if (!isAbort(error)) this.onfail(error);
        })
        .finally(() => this.pending.delete(name));
      this.pending.set(name, fetching);
    }
    return fetching;
  }

  private address(what: string, query: Record<string, string | number>): string {
    return withQuery(`/api/attention/maps/${this.key}/${what}`, query);
  }
}

/** The next frame is on screen. */
function afterPaint(): Promise<void> {
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** Whether the server no longer has the maps: it was started again, or has others since. */
export function isLost(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

export type { AttentionMap };
