/** What an agent keeps in a hand beside its workspace, as the server asked for it. */
import type { ProvisionCommand } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type Driver, HandError, type MountSpec } from "../drivers/driver.ts";

/** Part of the agent's record of a hand: small, without secrets, readable by later versions. */
export interface MountConfig {
  readonly memoryStores: readonly MountedStore[];
  readonly sessionLog: boolean;
  /** Files that the session is given, also later. Not set in records of earlier builds. */
  readonly uploads?: boolean;
  readonly outputs?: boolean;
  /** The session had files when the hand was made: without them there is no hand. */
  readonly hasFiles?: boolean;
}

export interface MountedStore {
  readonly memoryStoreId: string;
  readonly path: string;
  readonly readOnly: boolean;
}

export const SESSION_DIR = "/mnt/session";
export const UPLOADS_DIR = `${SESSION_DIR}/uploads`;
export const OUTPUTS_DIR = `${SESSION_DIR}/outputs`;

/** Undefined for none. */
export function mountConfigOf({ mounts }: Pick<ProvisionCommand, "mounts">): MountConfig | undefined {
  if (mounts === undefined) return undefined;
  const { memoryStores: stores, sessionLog, uploads, outputs, hasFiles } = mounts;
  if (stores.length === 0 && !sessionLog && !uploads && !outputs) return undefined;
  const memoryStores = stores.map(({ memoryStoreId, path, readOnly }) => ({ memoryStoreId, path, readOnly }));
  return { memoryStores, sessionLog, uploads, outputs, hasFiles };
}

/** Throws HandError where the driver has no mounts, unless those that are asked for may be missing. */
export function mountSpecsOf(config: MountConfig, { name, capabilities }: Driver): MountSpec[] {
  const { memoryStores, sessionLog, uploads = false, outputs = false, hasFiles = false } = config;
  if (capabilities.mounts !== true) {
    if (memoryStores.length === 0 && !sessionLog && !hasFiles) return [];
    throw new HandError(
      `the driver ${name} cannot give hands memory stores, files or their session's log; choose another driver`,
    );
  }
  return [
    ...memoryStores.map(({ path, readOnly }) => ({ path, readOnly })),
    ...(sessionLog ? [{ path: SESSION_DIR, readOnly: true }] : []),
    ...(uploads ? [{ path: UPLOADS_DIR, readOnly: true, optional: !hasFiles }] : []),
    ...(outputs ? [{ path: OUTPUTS_DIR, readOnly: false, optional: true }] : []),
  ];
}
