/** Removes what an agent made in an earlier life and no hand's record names: hands made ahead, and half-made ones. */
import { LABELS } from "./container-plan.ts";
import type { Engine } from "./engine.ts";
import type { HandRecords } from "./hand-records.ts";

/** Rejects with HandError when the engine cannot be asked. */
export async function tidyEngine(engine: Engine, records: HandRecords): Promise<void> {
  const agentId = await records.agentId();
  const all = await Promise.all((await records.list()).map((handId) => records.read(handId)));
  const kept = new Set(all.map((record) => record?.unit));
  const isLeft = (labels: Readonly<Record<string, string>> | null) => {
    const unit = labels?.[LABELS.unit];
    return unit !== undefined && !kept.has(unit);
  };
  const filters = { label: [`${LABELS.agent}=${agentId}`] };
  const containers = await engine.ask("list containers", (docker) =>
    docker.listContainers({ all: true, filters }),
  );
  for (const { Id: id, Labels: labels } of containers) {
    if (!isLeft(labels)) continue;
    await engine.find("remove a container", (docker) =>
      docker.getContainer(id).remove({ force: true, v: true }),
    );
  }
  const { Volumes: volumes } = await engine.ask("list volumes", (docker) => docker.listVolumes({ filters }));
  for (const { Name: name, Labels: labels } of volumes ?? []) {
    if (isLeft(labels)) await engine.find("remove a volume", (docker) => docker.getVolume(name).remove());
  }
}
