/** Trials as parallel coordinates: axes, lines, and where a value lies on its axis. */

export interface AxisData {
  label: string;
  scale: "linear" | "log" | "category";
  /** The values of a category axis, from the bottom up. */
  categories?: string[];
}

export interface LineData {
  name: string;
  /** Lines of one group share a color. */
  group?: string;
  /** One value for each axis; null where the trial has none. */
  values: (number | string | null)[];
}

export interface ParallelData {
  axes: AxisData[];
  lines: LineData[];
  /** The axis of the score, by index. */
  score: number;
  higherIsBetter: boolean;
}

export function readParallel(data: any): ParallelData {
  const { axes, lines, score, higher_is_better: higherIsBetter } = data;
  return { axes, lines, score, higherIsBetter };
}

const FEW = 5;

export interface Tick {
  share: number;
  text: string;
}

/** One axis: the share of its height, from 0 to 1, at which each value lies. */
export class Axis {
  readonly low: number;
  readonly high: number;
  /** The values, where they are few: then each is a tick. */
  private readonly few: number[];

  constructor(
    readonly data: AxisData,
    values: (number | string | null)[],
  ) {
    const numbers = values.filter((value): value is number => typeof value === "number");
    this.few = [...new Set(numbers)].slice(0, FEW + 1);
    const scaled = numbers.map((value) => this.scaled(value));
    const [low, high] = [Math.min(...scaled), Math.max(...scaled)];
    const margin = high > low ? 0 : 0.5;
    this.low = numbers.length ? low - margin : 0;
    this.high = numbers.length ? high + margin : 1;
  }

  private scaled(value: number): number {
    return this.data.scale === "log" ? Math.log(value) : value;
  }

  /** The share of the height; null for a value that is missing. */
  share(value: number | string | null): number | null {
    if (value === null) return null;
    const { categories } = this.data;
    if (categories) {
      const at = categories.indexOf(String(value));
      return at < 0 ? null : categories.length === 1 ? 0.5 : at / (categories.length - 1);
    }
    return (this.scaled(Number(value)) - this.low) / (this.high - this.low);
  }

  /** The value at a share of the height, as text. */
  textAt(share: number): string {
    const { categories } = this.data;
    if (categories) return categories[Math.round(share * (categories.length - 1))];
    const scaled = this.low + share * (this.high - this.low);
    return formatValue(this.data.scale === "log" ? Math.exp(scaled) : scaled);
  }

  ticks(): Tick[] {
    const { categories } = this.data;
    if (categories) return categories.map((text) => ({ share: this.share(text)!, text }));
    if (this.few.length <= FEW) {
      return this.few.map((value) => ({ share: this.share(value)!, text: formatValue(value) }));
    }
    return [0, 0.25, 0.5, 0.75, 1].map((share) => ({ share, text: this.textAt(share) }));
  }
}

/** A value in at most four digits. */
export function formatValue(value: number | string | null): string {
  if (value === null) return "–";
  if (typeof value === "string") return value;
  const isTiny = value !== 0 && Math.abs(value) < 1e-4;
  const text = isTiny ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}
