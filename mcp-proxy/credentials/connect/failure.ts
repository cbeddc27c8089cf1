/** Why a connect goes no further. No message holds anything of a secret, nor what a far side has written but codes of the standards. */

export type ConnectStep = "discovery" | "registration" | "authorization" | "token";

/** The far side cannot be used, or has refused. */
export class ConnectFailed extends Error {
  override readonly name = "ConnectFailed";
  readonly step: ConnectStep;
  /** In lower case: one of ours, or an error code of the standards. */
  readonly problem: string;
  /** 0 without an answer. */
  readonly httpStatus: number;

  constructor(step: ConnectStep, problem: string, message: string, httpStatus = 0) {
    super(message);
    this.step = step;
    this.problem = problem;
    this.httpStatus = httpStatus;
  }
}

/** The caller shows a state that is over, another's, or none of a proxy's. */
export class StateRefused extends Error {
  override readonly name = "StateRefused";
  readonly problem: "expired" | "of_another" | "unreadable";

  constructor(problem: StateRefused["problem"], message: string) {
    super(message);
    this.problem = problem;
  }
}
