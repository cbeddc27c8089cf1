/** Figures as a table for people, or as one line of JSON for programs. */
import type { Bench, Figure } from "./bench.ts";
import { ratioOf } from "./bench.ts";
import type { Machine } from "./machine.ts";

export function reportJson(bench: Bench, machine: Machine, figures: readonly Figure[]): string {
  const rows = figures.map((figure) => ({
    figure: figure.figure,
    unit: figure.unit,
    product: rounded(figure.product),
    baseline: figure.baseline === undefined ? null : rounded(figure.baseline),
    ratio: nullable(ratioOf(figure)),
    aim: figure.aim ?? null,
    met: figure.met ?? null,
    ...(figure.note === undefined ? {} : { note: figure.note }),
  }));
  return JSON.stringify({ name: bench.name, machine, figures: rows });
}

export function reportTable(bench: Bench, machine: Machine, figures: readonly Figure[]): string {
  const header = ["figure", "unit", "product", "baseline", "ratio", "aim", "met"];
  const rows = figures.map((figure) => [
    figure.figure,
    figure.unit,
    String(rounded(figure.product)),
    figure.baseline === undefined ? "–" : String(rounded(figure.baseline)),
    ratioOf(figure) === undefined ? "–" : `${rounded(ratioOf(figure) as number)}×`,
    figure.aim ?? "",
    figure.met === undefined ? "" : figure.met ? "yes" : "NO",
  ]);
  const widths = header.map((_, column) =>
    Math.max(...[header, ...rows].map((row) => (row[column] as string).length)),
  );
  const line = (row: readonly string[]) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] as number))
      .join("  ")
      .trimEnd();
  const notes = figures
    .filter((figure) => figure.note !== undefined)
    .map((figure) => `  ${figure.figure}: ${figure.note}`);
  return [
    `${bench.name}: ${bench.describe}`,
    `${machine.cpu}, ${machine.cores} cores, ${machine.memoryGiB} GiB, Node ${machine.node}, ${machine.platform}`,
    "",
    line(header),
    line(widths.map((width) => "-".repeat(width))),
    ...rows.map(line),
    ...(notes.length > 0 ? ["", ...notes] : []),
  ].join("\n");
}

function rounded(value: number): number {
  return Number(value.toPrecision(4));
}

function nullable(value: number | undefined): number | null {
  return value === undefined ? null : rounded(value);
}
