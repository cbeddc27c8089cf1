/** Tables for people: columns aligned, no wider than they need to be. */

const MAX_CELL_CHARS = 48;
const GAP = "  ";

/** Control characters in what others wrote must not reach a terminal. */
export function printable(text: string): string {
  const lines = text.replace(/\r\n?/g, "\n");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return lines.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\uFFFD");
}

/** Rows of cells under a head; long cells are cut with an ellipsis, the last column is not. */
export function formatTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const last = head.length - 1;
  const cells = [head, ...rows].map((row) =>
    row.map((cell, column) => (column === last ? oneLine(cell) : cut(oneLine(cell)))),
  );
  const widths = head.map((_, column) => Math.max(...cells.map((row) => [...(row[column] ?? "")].length)));
  return cells.map((row) => formatRow(row, widths)).join("\n");
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

function cut(text: string): string {
  const characters = [...text];
  return characters.length <= MAX_CELL_CHARS ? text : `${characters.slice(0, MAX_CELL_CHARS - 1).join("")}…`;
}
