/** Attention maps as `AttentionMaps.to_dict()` writes them, and one head of them as a matrix. */

export interface Token {
  text: string;
  special: boolean;
  word: number | null;
}

export type Kind = "encoder" | "decoder" | "cross";

/** One kind of attention: n queries, m keys, `heads[l]` heads in layer l. */
export interface AttentionMap {
  kind: Kind;
  queries: Token[];
  keys: Token[];
  /** The numbers of the first tokens: a text's own count from 1, a begin token is 0. */
  queryStart: number;
  keyStart: number;
  /** The words of the text, by index; empty where they are not known. */
  queryWords: string[];
  keyWords: string[];
  /** The number of each layer, counted from 1: a file may have only some. */
  layers: number[];
  heads: number[];
  source: HeadSource;
  /** [n, m]: 1 where a query may read a key. */
  visible: Uint8Array;
  /** Gold alignment: (query, key) by index of token. */
  links: [number, number][];
}

export type Weights = Float32Array | Float64Array;

/** Where the weights of a map come from: the page itself, or the lab's server, head by head. */
export interface HeadSource {
  /** One head [n, m] or, beyond the last head, the mean of its layer; undefined until it is here. */
  weights(layer: number, head: number): Weights | undefined;
  /** Ask for a head that is to be shown. */
  want?(layer: number, head: number): void;
  /** Small pictures of all heads, where the server draws them; undefined until they are here. */
  pictures?(scale: "one" | "row"): Pictures | undefined;
}

/** Small pictures of all maps of a kind, in the order of layers and heads, means after heads. */
export interface Pictures {
  rows: number;
  columns: number;
  /** [maps, rows, columns]: 0 to 254, or 255 where the mask hides all; the last may be missing. */
  levels: Uint8Array;
}

export interface AttentionMaps {
  run: string;
  task: string;
  weights: string;
  text: string;
  target: string | null;
  maps: AttentionMap[];
}

/** What a view draws: rows are queries, columns are keys. */
export interface Matrix {
  queries: Label[];
  keys: Label[];
  /** The numbers of the first row and column, as for tokens. */
  queryStart: number;
  keyStart: number;
  /** [rows, columns] */
  values: Weights;
  visible: Uint8Array;
  /** Indices into `values` of the gold alignment. */
  links: number[];
}

export interface Label {
  text: string;
  special: boolean;
}

/** A cell; either part may be missing, as when a pointer is over an axis. */
export interface Cell {
  row: number | null;
  column: number | null;
}

const FORMAT = 1;

/** Read the data that heed put into the page. */
export function readMaps(data: any): AttentionMaps {
  if (data === null) throw new Error("This file is a template. heed fills it with attention maps.");
  if (data.format !== FORMAT) {
    throw new Error(`This page reads format ${FORMAT}; its data has format ${data.format}.`);
  }
  return { ...data, maps: data.maps.map(readMap) };
}

function readMap(data: any): AttentionMap {
  const [rows, columns] = [data.query_tokens.length, data.key_tokens.length];
  const weights =
    typeof data.weights === "string"
      ? decodeFloats(data.weights)
      : Float32Array.from(data.weights.flat(3) as number[]);
  const heads: number[] = data.heads;
  if (weights.length !== heads.reduce((sum, count) => sum + count, 0) * rows * columns) {
    throw new Error(`The ${data.kind} weights of this page are incomplete. Write it again.`);
  }
  const visible = new Uint8Array(rows * columns);
  data.visible.forEach((line: string, row: number) => {
    for (let column = 0; column < columns; column++) {
      visible[row * columns + column] = line.charCodeAt(column) === 49 ? 1 : 0;
    }
  });
  return buildMap(data, visible, new StoredHeads(weights, heads, rows * columns));
}

/** A map of `AttentionMap.describe_axes`, with what the mask shows and where the weights are. */
export function buildMap(data: any, visible: Uint8Array, source: HeadSource): AttentionMap {
  return {
    kind: data.kind,
    queries: data.query_tokens,
    keys: data.key_tokens,
    queryStart: data.query_start ?? 1,
    keyStart: data.key_start ?? 1,
    queryWords: data.query_words ?? [],
    keyWords: data.key_words ?? [],
    layers: data.layers ?? data.heads.map((_: number, layer: number) => layer + 1),
    heads: data.heads,
    source,
    visible,
    links: data.links ?? [],
  };
}

/** The weights of all layers and heads, in the page: [l, h, n, m], one after the other. */
class StoredHeads implements HeadSource {
  constructor(
    private all: Float32Array,
    private heads: number[],
    private size: number,
  ) {}

  weights(layer: number, head: number): Weights {
    const { size, heads } = this;
    const before = heads.slice(0, layer).reduce((sum, count) => sum + count, 0) * size;
    if (head < heads[layer]) {
      return this.all.subarray(before + head * size, before + (head + 1) * size);
    }
    const mean = new Float64Array(size);
    for (let h = 0; h < heads[layer]; h++) {
      const start = before + h * size;
      for (let at = 0; at < size; at++) mean[at] += this.all[start + at] / heads[layer];
    }
    return mean;
  }
}

/** Little-endian float32 in base64. */
export function decodeFloats(base64: string): Float32Array {
  const bytes = decodeBytes(base64);
  if (new Uint8Array(new Uint16Array([1]).buffer)[0] === 0) {
    for (let i = 0; i < bytes.length; i += 4) bytes.subarray(i, i + 4).reverse();
  }
  return new Float32Array(bytes.buffer);
}

export function decodeBytes(base64: string): Uint8Array<ArrayBuffer> {
  // Browsers have had `fromBase64` since 2025; it takes a third of the time.
  const native = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };
  if (native.fromBase64) return native.fromBase64(base64);
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** How many maps a layer has: its heads and, where there are several, their mean as the last. */
export function mapCount(map: AttentionMap, layer: number): number {
  const heads = map.heads[layer] ?? 0;
  return heads > 1 ? heads + 1 : heads;
}

/** The name of a map of a layer, counted from 1. */
export function headName(map: AttentionMap, layer: number, head: number): string {
  const name = head < map.heads[layer] ? `head ${head + 1}` : "mean of heads";
  return `layer ${map.layers[layer]}, ${name}`;
}

/** One head, token by token; undefined until its weights are here. */
export function tokenMatrix(map: AttentionMap, layer: number, head: number): Matrix | undefined {
  const columns = map.keys.length;
  const values = map.source.weights(layer, head);
  return (
    values && {
      queries: map.queries,
      keys: map.keys,
      queryStart: map.queryStart,
      keyStart: map.keyStart,
      values,
      visible: map.visible,
      links: map.links.map(([query, key]) => query * columns + key),
    }
  );
}

/** The tokens of one word. A special token is a word of its own. */
interface Word extends Label {
  tokens: number[];
}

export function groupWords(tokens: Token[], texts: string[] = []): Word[] {
  const words: Word[] = [];
  tokens.forEach((token, i) => {
    const last = words.at(-1);
    if (last && token.word !== null && token.word === tokens[i - 1].word) {
      last.tokens.push(i);
      last.text += token.text;
    } else {
      words.push({ text: token.text, special: token.special, tokens: [i] });
    }
  });
  for (const word of words) word.text = texts[tokens[word.tokens[0]].word ?? -1] ?? word.text;
  return words;
}

/** Whether words and tokens differ. */
export function hasSubwords(map: AttentionMap): boolean {
  return [map.queries, map.keys].some((tokens) => groupWords(tokens).length < tokens.length);
}

/** One head by word: summed over the tokens of a key's word, averaged over those of a query's. */
export function wordMatrix(map: AttentionMap, layer: number, head: number): Matrix | undefined {
  const weights = map.source.weights(layer, head);
  if (!weights) return undefined;
  const queries = groupWords(map.queries, map.queryWords);
  const keys = groupWords(map.keys, map.keyWords);
  const columns = map.keys.length;
  const values = new Float64Array(queries.length * keys.length);
  const visible = new Uint8Array(values.length);
  queries.forEach((query, row) => {
    keys.forEach((key, column) => {
      const at = row * keys.length + column;
      for (const n of query.tokens) {
        for (const m of key.tokens) {
          values[at] += weights[n * columns + m];
          visible[at] |= map.visible[n * columns + m];
        }
      }
      values[at] /= query.tokens.length;
    });
  });
  const rowOf = wordOf(queries);
  const columnOf = wordOf(keys);
  const links = new Set(map.links.map(([n, m]) => rowOf.get(n)! * keys.length + columnOf.get(m)!));
  const { queryStart, keyStart } = map;
  return { queries, keys, queryStart, keyStart, values, visible, links: [...links] };
}

function wordOf(words: Word[]): Map<number, number> {
  return new Map(words.flatMap((word, i) => word.tokens.map((token) => [token, i])));
}
