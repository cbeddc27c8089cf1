/** Which key secrets are sealed to. */
import type { PublicSealingKey } from "../../kit/vault/sealed-content.ts";

/**
 * The newest key that every connected proxy can open with; where there is none, the newest of one of them; where none is
 * connected, the newest that was published. What proxies that are connected here have said themselves is believed first:
 * it came over their own connection and not from a table.
 */
export function chooseKey(known: {
  readonly here: readonly (readonly PublicSealingKey[])[];
  readonly connected: readonly (readonly string[])[];
  readonly published: readonly PublicSealingKey[];
}): PublicSealingKey | undefined {
  const { here, connected, published } = known;
  const ids = [...here.map((keys) => keys.map(({ keyId }) => keyId)), ...connected];
  const said = here.flat();
  const candidates = said.length > 0 ? said : published.filter(({ keyId }) => ids.flat().includes(keyId));
  const ofAll = candidates.find(({ keyId }) => ids.every((list) => list.includes(keyId)));
  return ofAll ?? candidates[0] ?? published[0];
}
