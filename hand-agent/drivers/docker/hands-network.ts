/**
 * The bridge network of this agent's hands that may reach the world: hands on it cannot reach each other. Made when the
 * first of them needs it, removed when nobody uses it.
 */
import { LABELS } from "./container-plan.ts";
import { type Engine, EngineError } from "./engine.ts";

export class HandsNetwork {
  private readonly engine: Engine;
  private readonly agentId: () => Promise<string>;
  private readonly installationId: () => string;
  private turn: Promise<unknown> = Promise.resolve();
  /** Containers that name it and are not connected yet. */
  private starting = 0;

  constructor(engine: Engine, agentId: () => Promise<string>, installationId: () => string) {
    this.engine = engine;
    this.agentId = agentId;
    this.installationId = installationId;
  }

  /** Its name, once it is there; it stays until `started` is called as often. */
  use(): Promise<string> {
    this.starting += 1;
    return this.inTurn(async () => {
      const agentId = await this.agentId();
      const name = `tendon-${agentId}`;
      const found = await this.engine.find("look at the network", (docker) =>
        docker.getNetwork(name).inspect(),
      );
      if (found === undefined) {
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
      try {
        await this.engine.find("remove the network", (docker) => docker.getNetwork(name).remove());
      } catch (error) {
        if (!(error instanceof EngineError) || error.status !== 403) throw error;
      }
    });
  }

  private inTurn<T>(run: () => Promise<T>): Promise<T> {
    const result = this.turn.then(run);
    this.turn = result.catch(() => {});
    return result;
  }
}
