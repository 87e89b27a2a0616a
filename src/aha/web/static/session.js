// What the page knows about the server and about what is open; all its parts look here.

export const session = {
  about: null, // what the server has told of itself
  model: null, // the entry of the chosen model there
  pictures: [], // records of this session
  classes: [], // the model's best for the open picture
  named: new Map(), // index of a class -> its label
  generation: 0, // counts pictures opened: answers about an earlier one are dropped
  ready: null, // a promise of the beginning
};

export const labelOf = (index) => session.named.get(index) ?? `class ${index}`;
