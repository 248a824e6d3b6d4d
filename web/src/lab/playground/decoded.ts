/** A decoded text as the server sends it: tokens with alternatives, the tree of a beam, attention. */

export interface Alternative {
  id: number;
  token: string;
  logprob: number;
  probability: number;
  /** The probability that sampling draws it; absent where nothing is sampled. */
  drawn?: number;
}

/** A hypothesis that the search kept at one step; its last token. */
export interface Node extends Alternative {
  /** The index of the node that it continues. */
  parent: number | null;
  depth: number;
  rank: number;
  /** The sum of the log-probabilities of all its tokens. */
  total: number;
  score: number;
  ended: boolean;
  alternatives?: Alternative[];
}

export interface Hypothesis {
  text: string;
  score: number;
  logprob: number;
  cut: boolean;
  node: number;
}

export interface Decoded {
  text: string;
  cut: boolean;
  input_tokens: string[];
  tokens: (Node & { node: number })[];
  hypotheses: Hypothesis[];
  nodes: Node[];
  /** Cross-attention by layer, averaged over heads: base64 of float32, a row for each token. */
  attention: { layer: number; weights: string }[];
}

/** One line of a streamed decoding. */
export interface StreamLine {
  nodes?: Node[];
  /** The text of the best hypothesis so far. */
  text?: string;
  result?: Decoded;
}

/** The indices of the nodes from the first token to this one. */
export function pathTo(nodes: Node[], index: number): number[] {
  const path = [];
  for (let at: number | null = index; at !== null; at = nodes[at].parent) path.push(at);
  return path.reverse();
}

/** The node of the newest step with the best score; -1 where there is none. */
export function leadingNode(nodes: Node[]): number {
  const deepest = Math.max(0, ...nodes.map((node) => node.depth));
  let best = -1;
  nodes.forEach((node, index) => {
    if (node.depth === deepest && (best < 0 || node.score > nodes[best].score)) best = index;
  });
  return best;
}

/** A probability in percent, with as many digits as it takes to differ from 0 and 100. */
export function formatPercent(probability: number): string {
  const percent = 100 * probability;
  if (percent === 0) return "0 %";
  if (percent < 0.0001) return `${percent.toExponential(0).replace("-", "−")} %`;
  if (percent < 0.01) return `${percent.toFixed(4)} %`;
  return `${percent.toFixed(percent < 10 || percent > 99.9 ? 2 : 1)} %`;
}

export function formatScore(value: number): string {
  return value.toFixed(3).replace("-", "−");
}
