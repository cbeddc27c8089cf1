/** What a bench is: figures of the product, each beside its baseline from the same run. */

export interface Figure {
  /** What was measured, in words. */
  readonly figure: string;
  /** Unit of product and baseline, such as "ms". */
  readonly unit: string;
  readonly product: number;
  /** Undefined when the baseline could not be measured here; then `note` says why. */
  readonly baseline: number | undefined;
  /** What the figure should be, in words that name the comparison: "≤ 0.5× baseline". */
  readonly aim: string | undefined;
  readonly met: boolean | undefined;
  readonly note?: string;
}

export interface BenchContext {
  /** Progress for people; never mixed with figures. */
  say(line: string): void;
  /** Whatever is registered here is undone when the bench ends, last first, also when it fails. */
  defer(undo: () => Promise<void> | void): void;
  /** Multiplies how much is measured; 1 is the default, tests use less. */
  readonly scale: number;
}

export interface Bench {
  readonly name: string;
  /** One line: what is measured against what. */
  readonly describe: string;
  run(context: BenchContext): Promise<Figure[]>;
}

/** product / baseline, or undefined without a baseline. */
export function ratioOf(figure: Figure): number | undefined {
  return figure.baseline === undefined || figure.baseline === 0
    ? undefined
    : figure.product / figure.baseline;
}
