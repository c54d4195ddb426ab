// As far as the pages use it.
declare const uPlot: { new (options: any, data: any, target: HTMLElement): any };
export default uPlot;
