/** Previews of events that form, as one stream tells them: a beginning of the text, however much of the rest got lost (pure). */
import type { PreviewStart, PreviewText } from "../../../../proto/gen/tendon/v1/event_pb.js";

/** Events of which a preview is told; the oldest is forgotten. */
const MAX_FORMING = 64;

interface Forming {
  /** Characters of each block that were told. */
  readonly told: number[];
  /** Something of it was lost: what comes now would stand in the wrong place. */
  isCut: boolean;
}

export class FormingText {
  private readonly types: ReadonlySet<string>;
  private readonly forming = new Map<string, Forming>();

  /** `types` of events whose previews are told. */
  constructor(types: ReadonlySet<string>) {
    this.types = types;
  }

  /** Whether it is to be told. */
  begins({ eventId, type }: PreviewStart): boolean {
    if (!this.types.has(type) || this.forming.has(eventId)) return false;
    if (this.forming.size >= MAX_FORMING) this.forming.delete(this.forming.keys().next().value!);
    // Nothing is shown of what a model thinks.
    this.forming.set(eventId, { told: [], isCut: type !== "agent.message" });
    return true;
  }

  /** Whether it is to be told. Who does not say where a text stands is believed. */
  continues({ eventId, index, text, offset }: PreviewText): boolean {
    const forming = this.forming.get(eventId);
    if (forming === undefined || forming.isCut) return false;
    const told = forming.told[index] ?? 0;
    if (offset !== undefined && offset !== BigInt(told)) {
      forming.isCut = true;
      return false;
    }
    forming.told[index] = told + text.length;
    return true;
  }

  ends(eventId: string): void {
    this.forming.delete(eventId);
  }
}
