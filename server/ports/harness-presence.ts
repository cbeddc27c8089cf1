/** Which harnesses are connected, to which replica: for people and for readiness, not for decisions. */
export interface HarnessPresence {
  connected(harness: {
    instanceId: string;
    build: string;
    loops: readonly string[];
    capacity: number;
    modelSource: string;
  }): Promise<void>;
  seen(instanceId: string, sessions: number): Promise<void>;
  gone(instanceId: string): Promise<void>;
}
