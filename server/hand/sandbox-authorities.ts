/**
 * What sandboxes of a workspace have to trust so that a proxy may speak for hosts of variables. Proxies make it from keys that
 * only they have; here it is remembered, so that a proxy that is being started again holds up no hand.
 */
import type { Clock } from "../../kit/clock.ts";
import { isTendonError, TendonError } from "../../kit/errors.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";

export interface SandboxAuthoritiesDeps {
  readonly proxies: () => Pick<ProxyDirectory, "ask">;
  readonly clock: Clock;
}

const ASK_WITHIN_MS = 5_000;
/** How long it is not asked again: a proxy with another key is heard of by then. */
const FRESH_MS = 30_000;
const MAX_KEPT = 1_000;

export class SandboxAuthorities {
  private readonly deps: SandboxAuthoritiesDeps;
  private readonly kept = new Map<string, { readonly pem: string; readonly askedMs: number }>();

  constructor(deps: SandboxAuthoritiesDeps) {
    this.deps = deps;
  }

  /** PEM, at least one certificate. NOT_CONFIGURED while no proxy is connected and none was before, UNAVAILABLE. */
  async of(workspaceId: string): Promise<string> {
    const nowMs = this.deps.clock.monotonicMs();
    const known = this.kept.get(workspaceId);
    if (known !== undefined && nowMs - known.askedMs < FRESH_MS) return known.pem;
    try {
      const pem = await this.ask(workspaceId);
      this.kept.delete(workspaceId);
      this.kept.set(workspaceId, { pem, askedMs: nowMs });
      if (this.kept.size > MAX_KEPT) this.kept.delete(this.kept.keys().next().value ?? "");
      return pem;
    } catch (error) {
      if (known !== undefined && isTendonError(error)) return known.pem;
      throw error;
    }
  }

  private async ask(workspaceId: string): Promise<string> {
    const ask = { case: "authorities" as const, value: { workspaceId } };
    const { reason, message, authorities } = await this.deps.proxies().ask(ask, { timeoutMs: ASK_WITHIN_MS });
    if (reason !== "" || authorities === "") {
      throw new TendonError("UNAVAILABLE", message || "the proxy names no authority", { part: "proxy" });
    }
    return authorities;
  }
}
