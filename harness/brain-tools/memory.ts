/**
 * `memory`: the session's memory stores for a brain without hands, by the commands that models know. Every change carries
 * the call's event id, so a call that is run again finds what it had done.
 */
import { isTendonError } from "../../kit/errors.ts";

import type { Json } from "../event-payload.ts";
import { MEMORY_TOOL, memoryStoresOf, TOOL_ROOT, toolPathOf } from "../memory-note.ts";
import { type BrainCall, type BrainTool, type BrainToolResult, refusal } from "./brain-tool.ts";
import {
  INPUT_SCHEMA,
  type MemoryCommand,
  type MemoryPlace,
  memoryCommand,
  placeOf,
} from "./memory-input.ts";
import { StoreAccess } from "./memory-store-access.ts";
import { type Edited, inserted, listing, numbered, replaced } from "./memory-text.ts";

const DESCRIPTION = `Reads and writes your memory: text files below ${TOOL_ROOT} that outlive this session. Each memory store is one directory there.

Commands: view (a directory, or a file with line numbers), create (a new file), str_replace, insert, delete (a file or a directory), rename (within one store). Files are UTF-8 text of at most 100 KiB.`;

/** How often an edit is made anew on what others wrote meanwhile. */
const MAX_EDITS = 4;

export const memory: BrainTool = {
  name: MEMORY_TOOL,
  description: DESCRIPTION,
  inputSchema: INPUT_SCHEMA,
  async run(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
    const command = memoryCommand(input);
    if (typeof command === "string") return refusal(command);
    const stores = memoryStoresOf(call.resources);
    if (stores.length === 0) return refusal("This session was given no memory store.");
    const place = placeOf(stores, command.path);
    if (place === "root") {
      if (command.kind !== "view")
        return refusal(`${TOOL_ROOT} itself cannot be changed; name a file in a store.`);
      const lines = stores.map((store) => `${toolPathOf(store)}\t${store.name}`);
      return { text: ["Memory stores:", ...lines].join("\n") };
    }
    if ("problem" in place) return refusal(place.problem);
    try {
      return await carryOut(command, place, new StoreAccess(call, place.store, signal), call);
    } catch (error) {
      // Waiting makes no room.
      if (isTendonError(error, "LIMIT_EXCEEDED") && error.metadata.limit?.startsWith("memor"))
        return refusal(error.message);
      throw error;
    }
  },
};

async function carryOut(
  command: MemoryCommand,
  place: MemoryPlace,
  access: StoreAccess,
  call: BrainCall,
): Promise<BrainToolResult> {
  const { path } = place;
  const shown = command.path;
  if (command.kind === "view") return view(place, access, shown, command.range);
  if (path === "")
    return refusal(`${shown} is a memory store and cannot be changed itself; name a file in it.`);
  switch (command.kind) {
    case "create":
      await access.create(path, command.text);
      return { text: `The file ${shown} was created.` };
    case "str_replace":
      return edit(place, access, shown, (text) => replaced(text, shown, command.old, command.fresh));
    case "insert":
      return edit(place, access, shown, (text) => inserted(text, command.line, command.text));
    case "delete": {
      const count = await access.delete(path);
      if (count === 0) return gone(shown);
      return { text: `${shown} was deleted${count === 1 ? "" : `, with ${count} files in it`}.` };
    }
    case "rename":
      return rename(command.newPath, place, access, shown, call);
  }
}

async function view(
  { path }: MemoryPlace,
  access: StoreAccess,
  shown: string,
  range: readonly [number, number] | undefined,
): Promise<BrainToolResult> {
  const root = shown.replace(/\/+$/, "");
  const found = path === "" ? undefined : await access.find(path);
  if (found !== undefined) {
    const text = numbered(found.content ?? "", range);
    return { text: text === "" ? `${root} has no such lines or is empty.` : `${root}:\n${text}` };
  }
  const files = await access.list(path);
  if (files.length === 0 && path !== "") return gone(shown);
  const listed = files.map((file) => ({
    path: file.path.slice(path.length),
    size: Number(file.contentSizeBytes),
  }));
  return { text: listing(root, listed) };
}

/** On what stands there now; a text that others changed in between is read again. */
async function edit(
  { path }: MemoryPlace,
  access: StoreAccess,
  shown: string,
  change: (text: string) => Edited,
): Promise<BrainToolResult> {
  const done = { text: `The file ${shown} was edited.` };
  if (await access.wasDone()) return done;
  for (let attempt = 1; ; attempt += 1) {
    const found = await access.find(path);
    if (found === undefined) return gone(shown);
    const edited = change(found.content ?? "");
    if ("problem" in edited) return refusal(edited.problem);
    try {
      await access.update(found, edited.text);
      return done;
    } catch (error) {
      if (!isTendonError(error, "MEMORY_PRECONDITION_FAILED") || attempt >= MAX_EDITS) throw error;
    }
  }
}

async function rename(
  newPath: string,
  { store, path }: MemoryPlace,
  access: StoreAccess,
  shown: string,
  call: BrainCall,
): Promise<BrainToolResult> {
  const target = placeOf(memoryStoresOf(call.resources), newPath);
  if (target === "root" || "problem" in target) return refusal(`${newPath} is no place in a memory store.`);
  if (target.store.memoryStoreId !== store.memoryStoreId)
    return refusal("A file can only be renamed within its memory store; create it there and delete it here.");
  if (target.path === "" || `${target.path}/`.startsWith(`${path}/`))
    return refusal(`${shown} cannot be renamed to ${newPath}.`);
  const count = await access.rename(path, target.path);
  return count === 0 ? gone(shown) : { text: `${shown} was renamed to ${newPath}.` };
}

function gone(shown: string): BrainToolResult {
  return refusal(`${shown} does not exist.`);
}
