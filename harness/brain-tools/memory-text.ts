/** What the memory tool does to texts, and how it shows them. Pure. */

const MAX_LISTED = 400;

/** Lines as the model counts them, from 1. */
export function numbered(text: string, range: readonly [number, number] | undefined): string {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  const [from, to] = range ?? [1, -1];
  const last = to === -1 ? lines.length : Math.min(to, lines.length);
  return lines
    .slice(from - 1, last)
    .map((line, index) => `${String(from + index).padStart(6)}\t${line}`)
    .join("\n");
}

export type Edited = { readonly text: string } | { readonly problem: string };

export function replaced(text: string, path: string, old: string, fresh: string): Edited {
  const first = text.indexOf(old);
  if (first < 0) return { problem: `No replacement was made: old_str does not appear verbatim in ${path}.` };
  if (text.indexOf(old, first + 1) >= 0) {
    const lines = linesOf(text, old).join(", ");
    return {
      problem: `No replacement was made: old_str appears more than once, in lines ${lines}. Make it unique.`,
    };
  }
  return { text: text.slice(0, first) + fresh + text.slice(first + old.length) };
}

function linesOf(text: string, part: string): number[] {
  const lines: number[] = [];
  for (let at = text.indexOf(part); at >= 0 && lines.length < 20; at = text.indexOf(part, at + 1))
    lines.push(text.slice(0, at).split("\n").length);
  return lines;
}

/** Behind this line; 0 is before the first. */
export function inserted(text: string, line: number, fresh: string): Edited {
  const lines = text.split("\n");
  const isEnded = lines.at(-1) === "";
  const count = isEnded ? lines.length - 1 : lines.length;
  if (!Number.isInteger(line) || line < 0 || line > count)
    return { problem: `insert_line must be a whole number from 0 to ${count}, the lines of the file.` };
  const added = fresh.endsWith("\n") ? fresh.slice(0, -1) : fresh;
  return { text: [...lines.slice(0, line), added, ...lines.slice(line)].join("\n") };
}

export interface Listed {
  readonly path: string;
  readonly size: number;
}

/** Files and directories up to two levels below `root`, with the bytes that are in them. `files` are sorted by path. */
export function listing(root: string, files: readonly Listed[]): string {
  const sizes = new Map<string, number>();
  const add = (path: string, size: number) => sizes.set(path, (sizes.get(path) ?? 0) + size);
  for (const { path, size } of files) {
    const parts = path.split("/").slice(1);
    add(root, size);
    for (const depth of [1, 2]) {
      if (parts.length < depth) break;
      const isFile = parts.length === depth;
      add(`${root}/${parts.slice(0, depth).join("/")}${isFile ? "" : "/"}`, size);
    }
  }
  if (files.length === 0) return `${root} is empty.`;
  const lines = [...sizes].map(([path, size]) => `${sizeText(size)}\t${path}`);
  const cut = lines.slice(0, MAX_LISTED);
  if (lines.length > cut.length)
    cut.push(`[${lines.length - cut.length} more; look at one of the directories]`);
  return [`Files and directories up to 2 levels deep in ${root}:`, ...cut].join("\n");
}

function sizeText(bytes: number): string {
  return bytes < 1024 ? `${bytes}` : `${(bytes / 1024).toFixed(1)}K`;
}
