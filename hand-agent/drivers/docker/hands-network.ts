/**
 * The bridge network of this agent's hands that may reach the world: hands on it cannot reach each other. Made when the
 * first of them needs it, removed when nobody uses it.
 */
import type { Clock } from "../../../kit/clock.ts";
import { LABELS } from "./container-plan.ts";
import { type Engine, EngineError } from "./engine.ts";
import { guardMachine, removeGuard } from "./machine-guard.ts";

export class HandsNetwork {
  private readonly engine: Engine;
  private readonly agentId: () => Promise<string>;
  private readonly installationId: () => string;
  private readonly clock: Clock;
  private turn: Promise<unknown> = Promise.resolve();
  /** Containers that name it and are not connected yet. */
  private starting = 0;

  constructor(engine: Engine, agentId: () => Promise<string>, installationId: () => string, clock: Clock) {
    this.clock = clock;
    this.engine = engine;
    this.agentId = agentId;
    this.installationId = installationId;
  }

  /** Its name, once it is there and guarded; it stays until `started` is called as often. Rejects with HandError. */
  use(): Promise<string> {
    this.starting += 1;
    return this.inTurn(async () => {
      const agentId = await this.agentId();
      const name = `tendon-${agentId}`;
      if ((await this.bridge(name)) === undefined) {
        await this.engine.ask("make a network", (docker) =>
          docker.createNetwork({
            Name: name,
            CheckDuplicate: true,
            Driver: "bridge",
            Options: { "com.docker.network.bridge.enable_icc": "false" },
            Labels: { [LABELS.agent]: agentId, [LABELS.installation]: this.installationId() },
          }),
        );
      }
      // Each time: whoever loads a machine's rules anew takes it away.
      await guardMachine((await this.bridge(name)) ?? "", this.clock);
      return name;
    });
  }

  /** A container is connected, or will not be. */
  started(): void {
    this.starting -= 1;
  }

  /** One that containers are connected to stays. */
  removeIfUnused(): Promise<void> {
    return this.inTurn(async () => {
      if (this.starting > 0) return;
      const name = `tendon-${await this.agentId()}`;
      const bridge = await this.bridge(name);
      try {
        await this.engine.find("remove the network", (docker) => docker.getNetwork(name).remove());
      } catch (error) {
        if (!(error instanceof EngineError) || error.status !== 403) throw error;
        return;
      }
      if (bridge !== undefined) await removeGuard(bridge, this.clock);
    });
  }

  /** The interface of the machine; undefined when there is no such network. */
  private async bridge(name: string): Promise<string | undefined> {
    const found = await this.engine.find("look at the network", (docker) =>
      docker.getNetwork(name).inspect(),
    );
    if (found === undefined) return undefined;
    const { Id: id, Options: options } = found as { Id: string; Options?: Record<string, string> | null };
    return options?.["com.docker.network.bridge.name"] ?? `br-${id.slice(0, 12)}`;
  }

  private inTurn<T>(run: () => Promise<T>): Promise<T> {
    const result = this.turn.then(run);
    this.turn = result.catch(() => {});
    return result;
  }
}
