/** Where sessions belong: facts that never change, remembered so that an append needs no query to know who may make it. */
import { notFound } from "../../kit/errors.ts";
import { isSessionId } from "../../kit/ids.ts";
import type { SessionStore } from "../store/sessions.ts";
import type { SessionPlace } from "./rules.ts";

const MAX_PLACES = 50_000;

export class Places {
  private readonly sessions: Pick<SessionStore, "standing">;
  private readonly known = new Map<string, SessionPlace>();

  constructor(sessions: Pick<SessionStore, "standing">) {
    this.sessions = sessions;
  }

  /** NOT_FOUND. A session that was deleted may still be known here; whatever is done with it then fails. */
  async get(sessionId: string): Promise<SessionPlace> {
    const known = this.known.get(sessionId);
    if (known) return known;
    // What cannot be an id would not even be text to Postgres.
    const place = isSessionId(sessionId) ? await this.sessions.standing(sessionId) : undefined;
    if (!place) throw notFound("session", sessionId);
    const { workspaceId, environmentId, slotEnvironmentIds } = place;
    this.known.set(sessionId, { workspaceId, environmentId, slotEnvironmentIds });
    if (this.known.size > MAX_PLACES) this.known.delete(this.known.keys().next().value!);
    return place;
  }

  forget(sessionId: string): void {
    this.known.delete(sessionId);
  }
}
