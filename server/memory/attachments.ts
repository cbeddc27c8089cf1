/** What new sessions are given of memory stores. */
import { create } from "@bufbuild/protobuf";
import { invalidField, notFound } from "../../kit/errors.ts";
import { refuseNul } from "../../kit/nul.ts";
import {
  AttachedMemoryStoreSchema,
  MemoryAccess,
  type MemoryStore,
} from "../../proto/gen/tendon/v1/memory_pb.js";
import type { MemoryAttachments } from "../ports/memory.ts";
import type { MemoryStoreStore } from "../store/memory-stores.ts";
import { storeArchived } from "../store/refusals.ts";
import { MAX_STORES_PER_SESSION, mountPaths } from "./rules.ts";

export function createAttachments(stores: Pick<MemoryStoreStore, "find">): MemoryAttachments {
  return {
    async attach(inputs, workspaceId) {
      const found: MemoryStore[] = [];
      for (const [index, { store: input, field }] of inputs.entries()) {
        if (index >= MAX_STORES_PER_SESSION)
          throw invalidField(field, `a session may be given ${MAX_STORES_PER_SESSION} memory stores`);
        refuseNul(input.instructions, `${field}.instructions`);
        const { memoryStoreId } = input;
        if (found.some(({ id }) => id === memoryStoreId))
          throw invalidField(`${field}.memory_store_id`, "a session is given a memory store once");
        const store = memoryStoreId.includes("\0") ? undefined : await stores.find(memoryStoreId);
        if (store?.workspaceId !== workspaceId) throw notFound("memory store", memoryStoreId);
        if (store.archivedAt) throw storeArchived(memoryStoreId);
        found.push(store);
      }
      const paths = mountPaths(found.map(({ name }) => name));
      return inputs.map(({ store: { access, instructions } }, index) => {
        const { id, name, description } = found[index]!;
        return create(AttachedMemoryStoreSchema, {
          memoryStoreId: id,
          access: access || MemoryAccess.READ_WRITE,
          instructions,
          name,
          description,
          mountPath: paths[index]!,
        });
      });
    },
  };
}
