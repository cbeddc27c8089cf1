/** The SDK's session store of one running program: gives it the transcript that the log holds, and collects what it adds. */
import type { SessionKey, SessionStore, SessionStoreEntry } from "./sdk.ts";
import type { Entry } from "./transcript.ts";

export class TranscriptStore implements SessionStore {
  private readonly restored: readonly Entry[];
  private readonly known: Set<unknown>;
  private unsaved: Entry[];
  private readonly listeners = new Set<() => void>();

  /** `restored` is what a program that resumes finds; of that `unsaved` is not in the log yet. */
  constructor(restored: readonly Entry[], unsaved: readonly Entry[]) {
    this.restored = [...restored, ...unsaved];
    this.unsaved = [...unsaved];
    this.known = new Set(this.restored.flatMap(({ uuid }) => (typeof uuid === "string" ? [uuid] : [])));
  }

  async append({ subpath }: SessionKey, entries: SessionStoreEntry[]): Promise<void> {
    // Transcripts of agents within the agent: there are none, because their tool is off.
    if (subpath !== undefined) return;
    for (const entry of entries) {
      if (entry.uuid !== undefined && this.known.has(entry.uuid)) continue;
      if (entry.uuid !== undefined) this.known.add(entry.uuid);
      this.unsaved.push(entry as Entry);
    }
    for (const listener of [...this.listeners]) listener();
  }

  async load({ subpath }: SessionKey): Promise<SessionStoreEntry[] | null> {
    return subpath === undefined && this.restored.length > 0 ? (this.restored as SessionStoreEntry[]) : null;
  }

  /** What was added since the last time. */
  takeUnsaved(): Entry[] {
    return this.unsaved.splice(0);
  }

  /** Of the model's answer with this id, the lines that have arrived and are not taken yet. */
  linesOf(messageId: string): readonly Entry[] {
    const isOf = ({ type, message }: Entry) =>
      type === "assistant" && (message as { id?: unknown } | undefined)?.id === messageId;
    return this.unsaved.filter(isOf);
  }

  /** Calls `listener` after each addition; the returned function ends that. */
  onAdded(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
