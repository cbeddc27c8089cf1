/**
 * The variables that count for one connection of a sandbox. What is to be put in is asked for anew at each request (S3); what
 * is to be taken out of answers is what this connection knows of, asked for once: the values of all variables for its host.
 */
import { isTendonError, messageOf } from "../../kit/errors.ts";
import type { Credentials, VariableGrant } from "../credentials/credentials.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import type { SandboxConnection } from "../tunnels/sandbox-connection.ts";
import { EgressRefusal } from "./refusal.ts";

/** Different variables in one request. */
const MAX_IN_REQUEST = 64;
/** Values of before that are still looked for in answers. */
const MAX_PAST_VALUES = 64;

export class ConnectionVariables {
  private readonly credentials: Pick<Credentials, "variable">;
  private readonly connection: SandboxConnection;
  private readonly granted = new Map<string, VariableGrant>();
  /** Values that this connection has known, also of variables that have another one by now. */
  private readonly seen = new Set<string>();
  private areKnown = false;

  constructor(credentials: Pick<Credentials, "variable">, connection: SandboxConnection) {
    this.credentials = credentials;
    this.connection = connection;
  }

  /** Values to take out of what the host answers. */
  get values(): readonly string[] {
    return [...this.seen];
  }

  /** Whether a body may have to be looked into. */
  get areInBodies(): boolean {
    return [...this.granted.values()].some(({ inBody }) => inBody);
  }

  /** Those that may be put into bodies, for the audit log. */
  forBodies(): readonly VariableGrant[] {
    return [...this.granted.values()].filter(({ inBody }) => inBody);
  }

  /**
   * Before the first request goes on: all variables for this host. Says whether it asked just now, so that what a request needs
   * is not asked for twice. Throws an EgressRefusal.
   */
  async known(): Promise<boolean> {
    if (this.areKnown) return false;
    await this.ask(this.connection.variables);
    this.areKnown = true;
    return true;
  }

  /** What was sent of a value in another form, such as a whole pair of user and password. */
  sent(text: string): void {
    this.remember(text);
  }

  /**
   * By name; those that the session does not have for this host are missing. `asked`: those for this host were asked for a
   * moment ago. Throws an EgressRefusal.
   */
  async fresh(names: readonly string[], asked: boolean): Promise<ReadonlyMap<string, VariableGrant>> {
    if (names.length > MAX_IN_REQUEST) {
      throw new EgressRefusal(
        "bad_request",
        `a request may name ${MAX_IN_REQUEST} variables, not ${names.length}`,
      );
    }
    const { variables } = this.connection;
    await this.ask(asked ? names.filter((name) => !variables.includes(name)) : names);
    return new Map([...this.granted].filter(([name]) => names.includes(name)));
  }

  private async ask(names: readonly string[]): Promise<void> {
    const grants = await Promise.all(names.map((name) => this.askFor(name)));
    for (const [index, grant] of grants.entries()) {
      const name = names[index] ?? "";
      if (grant === undefined) this.granted.delete(name);
      else {
        this.granted.set(name, grant);
        this.remember(grant.value);
      }
    }
  }

  private remember(value: string): void {
    this.seen.delete(value);
    this.seen.add(value);
    const current = this.granted.size;
    for (const old of this.seen) {
      if (this.seen.size <= current + MAX_PAST_VALUES) break;
      this.seen.delete(old);
    }
  }

  private async askFor(name: string): Promise<VariableGrant | undefined> {
    const { sessionId, workspaceId, host, port } = this.connection;
    const place = port === 443 ? host : `${host}:${port}`;
    const epoch = BigInt(this.connection.epoch);
    try {
      return await this.credentials.variable({ sessionId, workspaceId, epoch, name, host, place });
    } catch (error) {
      if (error instanceof CredentialRefusal) {
        throw new EgressRefusal("forbidden", `the variable ${name} is not used: ${error.message}`);
      }
      if (isTendonError(error, "LEASE_FENCED")) {
        throw new EgressRefusal(
          "unavailable",
          "the session has another brain since this connection began; connect again",
        );
      }
      if (isTendonError(error)) {
        throw new EgressRefusal("unavailable", `the variable ${name} cannot be had: ${messageOf(error)}`);
      }
      throw error;
    }
  }
}
