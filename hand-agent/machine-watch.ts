/** What changes on the agent's machine while it runs, told to the server: what is free, and which images there are. */
import { create } from "@bufbuild/protobuf";
import type { Logger } from "../kit/log.ts";
import { type ConnectRequest, ImagesChangedSchema } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { MachineResources } from "../proto/gen/tendon/v1/hand_pb.js";
import { type DriverOffer, refreshImages } from "./driver-offers.ts";
import { readMachineResources } from "./machine-resources.ts";

export interface MachineWatchOptions {
  /** On the disk of the hands' workspaces. */
  readonly dir: string;
  readonly offers: readonly DriverOffer[];
  /** Says it where there is a connection; the next greeting has all of it. */
  readonly tell: (news: ConnectRequest["kind"]) => void;
  readonly log: Logger;
}

export class MachineWatch {
  /** As last seen. */
  machine: MachineResources | undefined;
  private readonly options: MachineWatchOptions;

  constructor(options: MachineWatchOptions) {
    this.options = options;
  }

  /** To be called before each connection, and from time to time. */
  async look(): Promise<void> {
    const { dir, offers, tell, log } = this.options;
    this.machine = await readMachineResources(dir);
    tell({ case: "resources", value: this.machine });
    for (const { name: driver, description } of await refreshImages(offers, log)) {
      tell({
        case: "imagesChanged",
        value: create(ImagesChangedSchema, { driver, images: description.images }),
      });
    }
  }
}
