/** Curves over training as the server sends them, and the scales of their axes. */

import { formatValue } from "./parallel";

export interface CurveData {
  id: string;
  name: string;
  /** The metric, where the curves of a chart have several. */
  metric: string;
  /** Names of the runs whose mean this is. */
  runs: string[];
  /** How many of them have values. */
  seeds: number;
  x: number[];
  y: number[];
  /** The edges of the band over seeds, where there are several. */
  low?: number[];
  high?: number[];
  /** Points before downsampling. */
  measured: number;
  /** The x after which not all seeds have values. */
  complete_until: number | null;
}

/** A curve with the number of its color, dash and marker. */
export interface StyledCurve extends CurveData {
  style: number;
}

export const COLORS = 7;
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3"];
/** Shapes around (0, 0), about eight pixels wide; the first curves have none. */
const MARKERS = [
  "",
  "M-3.6 -3.6H3.6V3.6H-3.6Z",
  "M0 -4.6L4.4 3.4H-4.4Z",
  "M0 -4.8L4.8 0L0 4.8L-4.8 0Z",
  "M-4 -4L4 4M-4 4L4 -4",
  "M0 4.6L4.4 -3.4H-4.4Z",
  "M-4.4 0H4.4M0 -4.4V4.4",
];

/** How many curves differ from all others: of one color in the dash, beyond that in the marker. */
export const STYLES = COLORS * DASHES.length * MARKERS.length;

export function colorOf(style: number): string {
  return `var(--series-${style % COLORS})`;
}

/** Curves of one color differ in their dashes. */
export function dashOf(style: number): string {
  return DASHES[Math.floor(style / COLORS) % DASHES.length];
}

/** The path of a curve's marker: another one for every seven curves, so that dashes are not alone. */
export function markerOf(style: number): string {
  const [round, turn] = [Math.floor(style / COLORS), Math.floor(style / (COLORS * DASHES.length))];
  return MARKERS[(round + turn) % MARKERS.length];
}

const MARKERS_APART = 90; // pixels between two markers of a curve

/** The places of a curve's markers, given where its points are from left to right. */
export function markerPlaces(lefts: number[]): number[] {
  const places: number[] = [];
  let next = -Infinity;
  for (let i = 0; i < lefts.length; i++) {
    if (lefts[i] < next) continue;
    places.push(i);
    next = lefts[i] + MARKERS_APART;
  }
  return places;
}

export interface ScaleTick {
  value: number;
  text: string;
}

/** A linear or logarithmic axis from `low` to `high`, as shares from 0 to 1. */
export class AxisScale {
  readonly low: number;
  readonly high: number;

  constructor(
    values: Iterable<number>,
    readonly isLog: boolean,
    margin = 0,
  ) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
      if (isLog && value <= 0) continue;
      const scaled = isLog ? Math.log10(value) : value;
      if (scaled < low) low = scaled;
      if (scaled > high) high = scaled;
    }
    if (low > high) [low, high] = [0, 1];
    const width = high - low || Math.abs(high) * 0.1 || 1;
    const room = high > low ? margin * width : width / 2;
    this.low = low - room;
    this.high = high + room;
  }

  share(value: number): number {
    return ((this.isLog ? Math.log10(value) : value) - this.low) / (this.high - this.low);
  }

  /** Round values, about as many as asked for. */
  ticks(count: number): ScaleTick[] {
    const values = this.isLog ? this.logTicks(count) : linearTicks(this.low, this.high, count);
    return values.map((value) => ({ value, text: formatTick(value) }));
  }

  private logTicks(count: number): number[] {
    const decades = this.high - this.low;
    if (decades < 0.7) return linearTicks(10 ** this.low, 10 ** this.high, count).filter((value) => value > 0);
    const factors = decades > 3 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
    const stride = Math.max(1, Math.ceil(decades / count));
    const values: number[] = [];
    for (let power = Math.floor(this.low); power <= Math.ceil(this.high); power++) {
      if (power % stride) continue;
      for (const factor of factors) {
        const at = power + Math.log10(factor);
        if (at >= this.low - 1e-9 && at <= this.high + 1e-9) values.push(factor * 10 ** power);
      }
    }
    return values;
  }
}

function linearTicks(low: number, high: number, count: number): number[] {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999)!;
  const values: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(i * step);
  return values;
}

const thousands = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const MILLION = 1e6;

function formatTick(value: number): string {
  if (Math.abs(value) >= MILLION) return `${formatValue(value / MILLION)}M`;
  return Math.abs(value) >= 1000 ? thousands.format(value) : formatValue(Number(value.toPrecision(12)));
}

/** A number with all its digits. */
export function formatExact(value: number): string {
  const text = Number.isInteger(value) && Math.abs(value) >= 10_000 ? thousands.format(value) : String(value);
  return text.replace("-", "−");
}
