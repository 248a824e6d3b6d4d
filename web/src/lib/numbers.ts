/** Numbers as a reader sees them. */

/** A weight to six decimals; one too small for these, in powers of ten. */
export function formatWeight(value: number): string {
  if (value === 0) return "0";
  if (Math.abs(value) < 0.00005) return value.toExponential(2).replace("-", "−");
  return value.toFixed(6);
}

const thousands = new Intl.NumberFormat("en");

export function formatCount(value: number): string {
  return thousands.format(value);
}

/** A duration in seconds, minutes or hours, as Python's `format_duration` has it. */
export function formatDuration(seconds: number): string {
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** The smallest of 1, 2, 5, 10, 20, … that is at least `value`. */
export function roundStep(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= value)!;
}
