/** What an agent keeps in a hand beside its workspace, as the server asked for it. */
import type { ProvisionCommand } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type Driver, HandError, type MountSpec } from "../drivers/driver.ts";

/** Part of the agent's record of a hand: small, without secrets, readable by later versions. */
export interface MountConfig {
  readonly memoryStores: readonly MountedStore[];
  readonly sessionLog: boolean;
}

export interface MountedStore {
  readonly memoryStoreId: string;
  readonly path: string;
  readonly readOnly: boolean;
}

export const SESSION_DIR = "/mnt/session";

/** Undefined for none. */
export function mountConfigOf({ mounts }: Pick<ProvisionCommand, "mounts">): MountConfig | undefined {
  const stores = mounts?.memoryStores ?? [];
  const sessionLog = mounts?.sessionLog ?? false;
  if (stores.length === 0 && !sessionLog) return undefined;
  const memoryStores = stores.map(({ memoryStoreId, path, readOnly }) => ({ memoryStoreId, path, readOnly }));
  return { memoryStores, sessionLog };
}

/** Throws HandError where the driver has no mounts. */
export function mountSpecsOf(config: MountConfig, { name, capabilities }: Driver): MountSpec[] {
  if (capabilities.mounts !== true) {
    throw new HandError(
      `the driver ${name} cannot give hands memory stores or their session's log; choose another driver`,
    );
  }
  const stores = config.memoryStores.map(({ path, readOnly }) => ({ path, readOnly }));
  return config.sessionLog ? [...stores, { path: SESSION_DIR, readOnly: true }] : stores;
}
