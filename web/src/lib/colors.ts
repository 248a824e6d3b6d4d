/** Colors of a weight: one hue, lightness monotone in the weight, so grey shows the same order. */

export type Theme = "light" | "dark";
export type Scale = "one" | "row";

const LEVELS = 256;

/** Lightness, chroma and hue (OKLCH) at weights 0, 0.25, 0.5, 0.75 and 1. */
const STOPS: Record<Theme, [number, number, number][]> = {
  light: [
    [0.98, 0.006, 240],
    [0.84, 0.07, 235],
    [0.66, 0.115, 242],
    [0.47, 0.12, 252],
    [0.27, 0.085, 262],
  ],
  dark: [
    [0.25, 0.018, 255],
    [0.42, 0.085, 255],
    [0.6, 0.115, 245],
    [0.78, 0.1, 220],
    [0.97, 0.035, 190],
  ],
};

/** `LEVELS` colors as 32-bit pixels of a canvas. */
export type Ramp = Uint32Array;

const ramps = new Map<Theme, Ramp>();

export function rampOf(theme: Theme): Ramp {
  let ramp = ramps.get(theme);
  if (!ramp) {
    const bytes = new Uint8ClampedArray(LEVELS * 4);
    for (let level = 0; level < LEVELS; level++) {
      bytes.set([...rgb(...between(STOPS[theme], level / (LEVELS - 1))), 255], level * 4);
    }
    ramp = new Uint32Array(bytes.buffer);
    ramps.set(theme, ramp);
  }
  return ramp;
}

/** The pixel of a weight in [0, 1]; weights outside take the end of the ramp. */
export function pixelOf(ramp: Ramp, share: number): number {
  return ramp[Math.max(0, Math.min(LEVELS - 1, Math.round(share * (LEVELS - 1))))];
}

/** The whole ramp as a CSS gradient. */
export function gradientOf(theme: Theme): string {
  const colors = Array.from({ length: 17 }, (_, i) => {
    return `rgb(${rgb(...between(STOPS[theme], i / 16)).map(Math.round).join(" ")})`;
  });
  return `linear-gradient(to right, ${colors.join(", ")})`;
}

/** A 32-bit pixel of a CSS color, as the theme's variables have it: #rrggbb. */
export function pixelOfHex(hex: string): number {
  const value = parseInt(hex.trim().slice(1), 16);
  const bytes = new Uint8Array([value >> 16, (value >> 8) & 255, value & 255, 255]);
  return new Uint32Array(bytes.buffer)[0];
}

/** What a weight is divided by before it becomes a color: 1, or the largest weight of its row. */
export function rowLimits(values: ArrayLike<number>, columns: number, scale: Scale): Float64Array {
  const rows = columns ? values.length / columns : 0;
  const limits = new Float64Array(rows).fill(1);
  if (scale === "row") {
    for (let row = 0; row < rows; row++) {
      let largest = 0;
      for (let at = row * columns; at < (row + 1) * columns; at++) {
        if (values[at] > largest) largest = values[at];
      }
      limits[row] = largest || 1;
    }
  }
  return limits;
}

function between(stops: [number, number, number][], share: number): [number, number, number] {
  const place = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [stops[first], stops[first + 1]];
  return [0, 1, 2].map((i) => a[i] + (b[i] - a[i]) * (place - first)) as [number, number, number];
}

/** OKLCH to sRGB in 0–255 (Ottosson 2020). */
function rgb(lightness: number, chroma: number, hue: number): [number, number, number] {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((value) => {
    const v = Math.max(0, Math.min(1, value));
    return 255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055);
  }) as [number, number, number];
}
