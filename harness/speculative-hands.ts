/**
 * Has hands made while the model still writes the call that will need them (H4). A guess costs nobody more than a hand: the
 * call itself finds it or waits for it, a slot has one hand whoever asks (H1), and what the turn did not use, because the answer
 * broke off or its calls may not run, the server gives back. Nothing here is waited for, and nothing that fails here is
 * told: the call says what is wrong.
 */
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import type { Lease } from "./lease.ts";
import type { SessionView } from "./session-view.ts";
import type { ToolCatalogue } from "./tool-catalogue.ts";

export interface SpeculativeHandsOptions {
  readonly hands: Pick<Client<typeof HandService>, "provision">;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly catalogue: ToolCatalogue;
  readonly log: Logger;
}

/** Longer than an environment may take for it: the server ends the attempt. */
const PROVISION_WITHIN_MS = 3_700_000;

export class SpeculativeHands {
  private readonly options: SpeculativeHandsOptions;
  /** Slots that were asked for under this lease; one that failed is left to the calls. */
  private readonly asked = new Set<string>();

  constructor(options: SpeculativeHandsOptions) {
    this.options = options;
  }

  /** The model has begun a call; its id is that of the event to come. */
  callBegan(eventId: string, modelName: string): void {
    const { hands, lease, view, catalogue, log } = this.options;
    const tool = catalogue.find(modelName);
    // What a client has to allow may wait for ever. What a model judges is mostly allowed, and soon: the hand is there by then.
    if (tool?.kind !== "hand" || tool.policy === "always_ask") return;
    const { slot } = tool;
    // A hand that the slot had and lost is replaced only by a call, which tells the model of it (H2).
    if (this.asked.has(slot) || view.state.handSlots.has(slot)) return;
    this.asked.add(slot);
    const { sessionId, proof, signal } = lease;
    const request = { requestId: eventId, sessionId, slot, speculative: true, lease: proof };
    hands.provision(request, { signal, deadlineMs: PROVISION_WITHIN_MS }).then(
      () => this.asked.delete(slot),
      (error: unknown) =>
        log.debug(
          { sessionId, slot, problem: messageOf(error) },
          "a hand could not be made ahead of its call",
        ),
    );
  }
}
