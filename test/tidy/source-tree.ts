/** The product's sources, for tests that look at them as text. */
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

export interface SourceFile {
  /** Path below the root, with slashes. */
  readonly path: string;
  readonly text: string;
  readonly isTest: boolean;
}

export function sourceFiles(folders: readonly string[]): SourceFile[] {
  return folders.flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && entry.name.endsWith(".ts") && !entry.name.endsWith(".d.ts"))
      .map((entry) => {
        const path = relative(ROOT, join(entry.parentPath, entry.name)).replaceAll("\\", "/");
        return { path, text: readFileSync(join(ROOT, path), "utf8"), isTest: path.endsWith(".test.ts") };
      }),
  );
}

/** Text with comments and string contents blanked, so that a word in prose is no finding. */
export function codeOf(text: string): string {
  return text
    .replace(/\/\*[\s\S]*?\*\//g, "")
    .replace(/(^|[^:"'`])\/\/.*$/gm, "$1")
    .replace(/"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/g, '""');
}

/** What a file imports or re-exports, statically or not: the specifiers as written. */
export function importsOf(text: string): string[] {
  const found = text.matchAll(/(?:\bfrom\s*|\bimport\s*\(\s*|\bimport\s+)"([^"]+)"/g);
  return [...found].map((match) => match[1] as string);
}

/** A relative specifier as a path below the root; anything else as it is. */
export function resolveImport(importer: string, specifier: string): string {
  if (!specifier.startsWith(".")) return specifier;
  const parts = importer.split("/").slice(0, -1);
  for (const part of specifier.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== ".") parts.push(part);
  }
  return parts.join("/");
}
