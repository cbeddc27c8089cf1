/**
 * What this loop does next: sends a request, asks for a summary first, or changes the context without asking anybody. Pure:
 * bytes of requests follow from the log alone; the size of the window decides only what is decided next, and that is recorded.
 */
import type { ContextChange } from "../loop.ts";
import { changeOf } from "./context-decision.ts";
import { type ContextSize, contextSize, contextStep } from "./context-policy.ts";
import type { ClaudeSettings } from "./loop-settings.ts";
import { fixedWeight, type ModelRequest, maxAnswerTokens, plan, type RequestParts } from "./plan.ts";
import { extractOf, summaryRequest } from "./summary-request.ts";

export type NextRequest =
  | { readonly kind: "ask"; readonly request: ModelRequest }
  | {
      readonly kind: "summarise";
      readonly request: ModelRequest;
      /** What the answer decides. */
      change(summary: string): ContextChange;
    }
  | { readonly kind: "change"; readonly change: ContextChange };

export function sizeOf(parts: RequestParts, windowTokens: number): ContextSize {
  return contextSize(parts.built, fixedWeight(parts), windowTokens, maxAnswerTokens(parts.agent));
}

export function nextRequest(parts: RequestParts, size: ContextSize, settings: ClaudeSettings): NextRequest {
  const step = contextStep(parts.built, size, settings);
  switch (step?.kind) {
    case undefined:
      return { kind: "ask", request: plan(parts) };
    case "trim":
    case "attachments":
      return { kind: "change", change: changeOf(step, size.tokens) };
    case "extract": {
      const summary = extractOf(parts, step.maxBytes);
      const decision = { kind: "compact", keepFrom: 0, summary, madeBy: "harness" } as const;
      return { kind: "change", change: changeOf(decision, size.tokens) };
    }
    case "summarise": {
      const { keepFrom } = step;
      const request = summaryRequest(parts, step, settings.compact?.instructions ?? "");
      const change = (summary: string) =>
        changeOf({ kind: "compact", keepFrom, summary, madeBy: "model" }, size.tokens);
      return { kind: "summarise", request, change };
    }
  }
}
