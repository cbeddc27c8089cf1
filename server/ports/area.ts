/** What a part of the server brings to the whole. The composition root asks each area for nothing else. */
import type { Service } from "../../kit/lifecycle.ts";
import type { BoundService } from "../../kit/rpc/service.ts";

export interface Area {
  /** For the composition root's messages. */
  readonly name: string;
  /** What it answers; each service belongs to one area. */
  readonly services?: readonly BoundService[];
  /** What runs beside the calls. Started in order once the database is ready, stopped in the opposite order when no call is left. */
  readonly parts?: readonly Service[];
  /**
   * The server is about to stop: long streams are told and ended with DRAINING, so that their callers go elsewhere. Resolves
   * when they have ended, at the latest after `graceMs`. Called once.
   */
  drain?(graceMs: number): Promise<void>;
}
