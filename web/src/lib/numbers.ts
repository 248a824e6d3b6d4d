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

/** The smallest of 1, 2, 5, 10, 20, … that is at least `value`. */
export function roundStep(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= value)!;
}
