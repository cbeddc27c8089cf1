/** What the model wrote, checked. Pure. */
import type { AttachedMemoryStore } from "../../proto/gen/tendon/v1/memory_pb.js";
import type { Json } from "../event-payload.ts";
import { TOOL_ROOT, toolPathOf } from "../memory-note.ts";

export type MemoryCommand =
  | { readonly kind: "view"; readonly path: string; readonly range: readonly [number, number] | undefined }
  | { readonly kind: "create"; readonly path: string; readonly text: string }
  | { readonly kind: "str_replace"; readonly path: string; readonly old: string; readonly fresh: string }
  | { readonly kind: "insert"; readonly path: string; readonly line: number; readonly text: string }
  | { readonly kind: "delete"; readonly path: string }
  | { readonly kind: "rename"; readonly path: string; readonly newPath: string };

export const INPUT_SCHEMA = JSON.stringify({
  type: "object",
  properties: {
    command: { type: "string", enum: ["view", "create", "str_replace", "insert", "delete", "rename"] },
    path: { type: "string", description: `Absolute path below ${TOOL_ROOT}; for all commands but rename.` },
    view_range: {
      type: "array",
      items: { type: "integer" },
      minItems: 2,
      maxItems: 2,
      description: "With view of a file: first and last line; -1 is the last of the file.",
    },
    file_text: { type: "string", description: "With create: the text of the new file." },
    old_str: { type: "string", description: "With str_replace: text that is in the file once." },
    new_str: { type: "string", description: "With str_replace: what stands there instead." },
    insert_line: {
      type: "integer",
      description: "With insert: the line to insert behind; 0 is the beginning.",
    },
    insert_text: { type: "string", description: "With insert: the text." },
    old_path: { type: "string", description: "With rename: what is renamed." },
    new_path: { type: "string", description: "With rename: its new path, in the same store." },
  },
  required: ["command"],
});

/** A text says what is wrong. */
export function memoryCommand(input: Json): MemoryCommand | string {
  const text = (field: string): string | undefined => {
    const value = input[field];
    return typeof value === "string" ? value : undefined;
  };
  const path = text("path");
  if (input.command === "rename") {
    const [from, newPath] = [text("old_path") ?? path, text("new_path")];
    if (from === undefined || newPath === undefined) return '"rename" needs "old_path" and "new_path".';
    return { kind: "rename", path: from, newPath };
  }
  if (path === undefined) return 'The input needs a "command" and a "path".';
  switch (input.command) {
    case "view": {
      const range = rangeFrom(input.view_range);
      return typeof range === "string" ? range : { kind: "view", path, range };
    }
    case "create": {
      const fileText = text("file_text");
      return fileText === undefined
        ? '"create" needs "file_text".'
        : { kind: "create", path, text: fileText };
    }
    case "str_replace": {
      const old = text("old_str");
      if (old === undefined || old === "") return '"str_replace" needs an "old_str" that is not empty.';
      return { kind: "str_replace", path, old, fresh: text("new_str") ?? "" };
    }
    case "insert": {
      const [line, fresh] = [input.insert_line, text("insert_text")];
      if (typeof line !== "number" || fresh === undefined)
        return '"insert" needs "insert_line" and "insert_text".';
      return { kind: "insert", path, line, text: fresh };
    }
    case "delete":
      return { kind: "delete", path };
    default:
      return '"command" must be one of view, create, str_replace, insert, delete and rename.';
  }
}

function rangeFrom(value: unknown): readonly [number, number] | undefined | string {
  if (value === undefined || value === null) return undefined;
  const [from, to] = Array.isArray(value) ? value : [];
  const isRange = Number.isInteger(from) && Number.isInteger(to) && from >= 1 && (to === -1 || to >= from);
  return isRange ? [from, to] : '"view_range" must be two line numbers, such as [1, 40] or [10, -1].';
}

/** A place in a store; `path` is "" for the store itself. */
export interface MemoryPlace {
  readonly store: AttachedMemoryStore;
  readonly path: string;
}

/** "root" for the directory of all stores; a text says what is wrong. */
export function placeOf(
  stores: readonly AttachedMemoryStore[],
  asked: string,
): MemoryPlace | "root" | { readonly problem: string } {
  const path = asked.length > 1 ? asked.replace(/\/+$/, "") : asked;
  if (path === TOOL_ROOT || path === "" || path === "/") return "root";
  for (const store of stores) {
    const root = toolPathOf(store);
    if (path === root) return { store, path: "" };
    if (path.startsWith(`${root}/`)) return { store, path: path.slice(root.length) };
  }
  const roots = stores.map(toolPathOf).join(", ");
  return { problem: `${asked} is in none of the memory stores. Those that there are: ${roots || "none"}.` };
}
