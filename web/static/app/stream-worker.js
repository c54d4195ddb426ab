// The shared worker that has the stream. A tab sends its topics, a sign that it is there, or that it goes.
import { Stream } from "./stream.js";

const stream = new Stream();

/** @param {any} event */
const connected = (event) => {
  const [port] = event.ports;
  port.onmessage = (/** @type {{data: {topics?: string[], restart?: boolean, bye?: boolean}}} */ { data }) => {
    if (data.topics) stream.set(port, data.topics, (news) => port.postMessage(news));
    else if (data.restart) stream.restart();
    else if (data.bye) stream.drop(port);
    else stream.hear(port);
  };
};
addEventListener("connect", connected);
