/** What the process driver takes from its caller, checked before anything is made. */
import { HandError, type HandSpec, type JsonValue } from "../driver.ts";

/** Ids are names of directories. */
export const HAND_ID = /^[A-Za-z0-9_-]{1,80}$/;
const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

export function checkSpec(spec: HandSpec): void {
  if (!HAND_ID.test(spec.handId)) throw new HandError("the hand's id is not usable as a directory name");
  for (const [name, value] of Object.entries(spec.env ?? {})) {
    if (!ENV_NAME.test(name) || name.startsWith("TENDON_"))
      throw new HandError(`env: "${name}" is not an allowed name`);
    if (value.includes("\0")) throw new HandError(`env: the value of ${name} holds a NUL character`);
  }
  for (const [name, value] of Object.entries(spec.limits ?? {})) {
    if (value)
      throw new HandError(
        `the process driver cannot enforce the limit ${name}; use another driver or drop it`,
      );
  }
}

export function handIdOf(handle: JsonValue): string {
  const handId = (handle as { handId?: unknown } | null)?.handId;
  if (typeof handId !== "string" || !HAND_ID.test(handId))
    throw new HandError("not a handle of the process driver");
  return handId;
}
