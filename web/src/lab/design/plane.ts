/** What a plane shows. */

export interface PlanePoint {
  id: string;
  /** In a sentence: "Key 1". */
  name: string;
  /** In the drawing: "1". */
  label: string;
  kind: "item" | "query";
  x: number;
  y: number;
  weight: number | null;
  isWanted: boolean;
}

export interface Arrow {
  name: string;
  x: number;
  y: number;
  isDashed: boolean;
}

export interface Marker {
  name: string;
  /** In the drawing, beside it. */
  label?: string;
  x: number;
  y: number;
  isDashed: boolean;
}
