/** Where the hashes of a session's log begin, as its row says. */
import { type ChainOrigin, NEW_CHAIN } from "../../../kit/chain/event-hash.ts";

/** Where somebody else wrote what is no origin: no chain begins with it, so that whoever verifies the log finds it. */
const NO_ORIGIN: ChainOrigin = { kind: "import", sessionId: "", position: 0, hash: "" };

export function originOf(text: string): ChainOrigin {
  if (text === "") return NEW_CHAIN;
  try {
    const { kind, sessionId, position, hash } = JSON.parse(text) as ChainOrigin;
    const isWhole =
      typeof sessionId === "string" && typeof hash === "string" && Number.isSafeInteger(position);
    if (isWhole && position >= 0 && (kind === "fork" || kind === "import"))
      return { kind, sessionId, position, hash };
  } catch {
    // Said by the origin.
  }
  return NO_ORIGIN;
}
