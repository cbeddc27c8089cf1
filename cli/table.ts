/** Tables for people: columns aligned, no wider than they need to be. */

const MAX_CELL_CHARS = 48;
const MIN_COLUMN_CHARS = 8;
const ID = /^[a-z]+_[0-9A-Za-z]{16,}$/;
const GAP = "  ";

/** Control characters in what others wrote must not reach a terminal. */
export function printable(text: string): string {
  const lines = text.replace(/\r\n?/g, "\n");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return lines.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\uFFFD");
}

/**
 * Rows of cells under a head; long cells are cut with an ellipsis, the last column only where it does not fit into `width`
 * characters, and others then too; empty columns are left out first, and ids stay whole. No width: standard output is no terminal.
 */
export function formatTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  width: number | undefined = process.stdout.columns,
): string {
  const whole = fitTable(head, rows, undefined);
  const needed = Math.max(...whole.split("\n").map((line) => [...line].length));
  if (width === undefined || needed <= width) return whole;
  const isFull = (column: number) => rows.some((row) => (row[column] ?? "") !== "");
  const only = (row: readonly string[]) => row.filter((_, column) => isFull(column));
  return fitTable(only(head), rows.map(only), width);
}

function fitTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  width: number | undefined,
): string {
  const last = head.length - 1;
  const cells = [head, ...rows].map((row) =>
    row.map((cell, column) => (column === last ? oneLine(cell) : cut(oneLine(cell)))),
  );
  const widths = head.map((_, column) => Math.max(...cells.map((row) => [...(row[column] ?? "")].length)));
  if (width !== undefined) narrow(widths, width, (column) => rows.some((row) => ID.test(row[column] ?? "")));
  return cells
    .map((row) => row.map((cell, column) => cut(cell, widths[column])))
    .map((row) => formatRow(row, widths))
    .join("\n");
}

/** Takes what is too much from the widest columns, as far as they stay readable. */
function narrow(widths: number[], width: number, isKept: (column: number) => boolean): void {
  const columns = widths.map((_, column) => column).filter((column) => !isKept(column));
  let tooMuch = widths.reduce((sum, one) => sum + one, 0) + GAP.length * (widths.length - 1) - width;
  for (; tooMuch > 0; tooMuch--) {
    const widest = columns.reduce<number | undefined>(
      (best, column) => (best === undefined || widths[column]! > widths[best]! ? column : best),
      undefined,
    );
    if (widest === undefined || widths[widest]! <= MIN_COLUMN_CHARS) return;
    widths[widest]! -= 1;
  }
}

function formatRow(row: readonly string[], widths: readonly number[]): string {
  return row
    .map((cell, column) => cell + " ".repeat(Math.max(0, widths[column]! - [...cell].length)))
    .join(GAP)
    .trimEnd();
}

/** Names and values below each other; entries without a value are left out. */
export function formatFields(fields: readonly (readonly [string, string | undefined])[]): string {
  const shown = fields.filter((field): field is readonly [string, string] => !!field[1]);
  const width = Math.max(0, ...shown.map(([name]) => name.length));
  return shown
    .map(([name, value]) => `${name.padEnd(width)}${GAP}${indentRest(printable(value), width)}`)
    .join("\n");
}

function indentRest(value: string, width: number): string {
  return value.replaceAll("\n", `\n${" ".repeat(width + GAP.length)}`);
}

function oneLine(text: string): string {
  return printable(text.replace(/\s+/g, " ").trim());
}

function cut(text: string, max = MAX_CELL_CHARS): string {
  const characters = [...text];
  return characters.length <= max ? text : `${characters.slice(0, max - 1).join("")}…`;
}
