/** What this machine has, for whoever places hands on it. Only a hint: what a driver enforces is a hand's own limits. */
import { statfs } from "node:fs/promises";
import { availableParallelism, freemem, totalmem } from "node:os";
import { create } from "@bufbuild/protobuf";
import { type MachineResources, MachineResourcesSchema } from "../proto/gen/tendon/v1/hand_pb.js";

/** `dir` is on the disk of the hands' workspaces. What cannot be found out is 0. */
export async function readMachineResources(dir: string): Promise<MachineResources> {
  const disk = await statfs(dir).catch(() => undefined);
  return create(MachineResourcesSchema, {
    cpuMillis: availableParallelism() * 1_000,
    memoryBytes: BigInt(totalmem()),
    memoryFreeBytes: BigInt(freemem()),
    diskBytes: BigInt((disk?.blocks ?? 0) * (disk?.bsize ?? 0)),
    diskFreeBytes: BigInt((disk?.bavail ?? 0) * (disk?.bsize ?? 0)),
  });
}
