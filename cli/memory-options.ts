/** `--memory` and `--memory-read-only`: stores that sessions are given. */
import { MemoryAccess } from "../proto/gen/tendon/v1/memory_pb.js";
import type { Api } from "./connect.ts";
import { memoryStoreIdOf } from "./named.ts";

export interface MemoryOptions {
  memory?: string[];
  memoryReadOnly?: string[];
}

/** By id, or by a name that only one has. */
export async function memoryResources(
  memory: Api["memory"],
  { memory: writable = [], memoryReadOnly = [] }: MemoryOptions,
) {
  const named = [
    ...writable.map((store) => ({ store, access: MemoryAccess.READ_WRITE })),
    ...memoryReadOnly.map((store) => ({ store, access: MemoryAccess.READ_ONLY })),
  ];
  return Promise.all(
    named.map(async ({ store, access }) => {
      const value = { memoryStoreId: await memoryStoreIdOf(memory, store), access };
      return { kind: { case: "memoryStore" as const, value } };
    }),
  );
}
