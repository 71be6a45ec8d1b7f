"""The code by which workgroups wait for a level of dispatches, and signal their own."""

from __future__ import annotations

from vkmnn.runtime import spirv
from vkmnn.runtime.spirv import ModuleEditor, op

POLLS = 1 << 14
"""Reads of a counter until a wait ends without success: some 10 ms, as each crosses the caches."""
LOOK = 1 << 8
"""Reads of a counter from one look at the report of others to the next; a power of two."""
WAIT_WORD, TARGET_WORD, OWN_WORD, RESET_WORD = range(4)
"""Words of a level's record: the counter to wait for and its full value, the level's own counter,
and one to set back to zero. Counters are numbers of words from the record on."""
RECORD_WORDS = 4

# Numbers of the SPIR-V specification, "Instructions", "Built-In", "Storage Class" and others.
_CONTROL_BARRIER, _MEMORY_BARRIER = 224, 225
_ATOMIC_LOAD, _ATOMIC_STORE, _ATOMIC_ADD, _ATOMIC_OR = 227, 228, 234, 241
_ADD, _EXTRACT, _BIT_OR, _BIT_AND = 128, 81, 197, 199
_EITHER, _EQUAL, _NOT_EQUAL, _NOT_LESS = 166, 170, 171, 174
_LOCAL_INDEX, _WORKGROUP_ID = 29, 26
_WORKGROUP_SCOPE = 2
_FUNCTION_CLASS = 7
_MEMORY = 0x8 | 0x40 | 0x100 | 0x800
"""AcquireRelease of buffers, shared memory and images; texel buffers are images."""
_AVAILABLE_AND_VISIBLE = 0x2000 | 0x4000


class FlagFunctions:
    """Adds functions to a module; see `wait_by_flags`.

    Args:
        module: the module.
        binding: the buffer of records and counters; the next one has the report.
    """

    def __init__(self, module: ModuleEditor, binding: int) -> None:
        self._module = module
        self._uint = unsigned = module.type(spirv.INT, 32, 0)
        self._bool = module.type(spirv.BOOL)
        self._constants: dict[int, int] = {}
        self._place = module.pointer(spirv.STORAGE_BUFFER, unsigned)
        words = module.new(spirv.RUNTIME_ARRAY, None, unsigned)
        module.mark(words, spirv.ARRAY_STRIDE, 4)
        self._flags = module.buffer(binding, words)
        self._report = module.buffer(binding + 1, unsigned)
        self._index = self._built_in(_LOCAL_INDEX, unsigned)
        self._triple = module.type(spirv.VECTOR, unsigned, 3)
        self._number = self._built_in(_WORKGROUP_ID, self._triple)
        self._scope = self._constant(module.scope)
        self._memory = _MEMORY | (_AVAILABLE_AND_VISIBLE if module.vulkan_model else 0)
        self._code: list[tuple[int, ...]] = []

    def wait(self) -> int:
        """Add a function that returns when the level before is complete, or has taken too long.

        One invocation reads the counter; the barrier lets the others see what it saw.
        """
        zero, local = self._constant(0), self._module.pointer(_FUNCTION_CLASS, self._uint)
        polls, polling, merge = (self._module.next_id() for _ in range(3))
        function = self._begin()
        self._do(spirv.VARIABLE, local, polls, _FUNCTION_CLASS)
        first = self._value(_EQUAL, self._bool, self._load(self._index), zero)
        self._branch_if(first, polling, merge, merge)
        self._label(polling)
        self._do(spirv.STORE, polls, zero)
        self._poll(self._counter(WAIT_WORD), self._word(TARGET_WORD), polls)
        self._do(spirv.BRANCH, merge)
        self._label(merge)
        self._barrier()
        self._end()
        return function

    def _poll(self, counter: int, target: int, polls: int) -> None:
        """Read a counter until it has the value, or until this or another wait has failed."""
        header, body, look, check, told, goes_on, passed, again, ends = (
            self._module.next_id() for _ in range(9)
        )
        report = self._chain(self._report, self._constant(0))
        self._do(spirv.BRANCH, header)
        self._label(header)
        self._do(spirv.LOOP_MERGE, ends, again, 0)
        self._do(spirv.BRANCH, body)
        self._label(body)
        seen = self._value(_ATOMIC_LOAD, self._uint, counter, self._scope, self._constant(0))
        full = self._value(_NOT_LESS, self._bool, seen, target)
        self._branch_if(full, ends, look, look)
        self._label(look)
        count = self._value(_ADD, self._uint, self._load(polls), self._constant(1))
        self._do(spirv.STORE, polls, count)
        rest = self._value(_BIT_AND, self._uint, count, self._constant(LOOK - 1))
        due = self._value(_EQUAL, self._bool, rest, self._constant(0))
        self._branch_if(due, check, passed, passed)
        self._label(check)  # the report is in the host's memory, and so far away
        failed = self._value(_ATOMIC_LOAD, self._uint, report, self._scope, self._constant(0))
        late = self._value(_NOT_EQUAL, self._bool, failed, self._constant(0))
        spent = self._value(_NOT_LESS, self._bool, count, self._constant(POLLS))
        self._branch_if(self._value(_EITHER, self._bool, late, spent), told, goes_on, goes_on)
        self._label(told)
        one = self._constant(1)
        self._value(_ATOMIC_OR, self._uint, report, self._scope, self._constant(0), one)
        self._do(spirv.BRANCH, ends)
        self._label(goes_on)
        self._do(spirv.BRANCH, passed)
        self._label(passed)
        self._do(spirv.BRANCH, again)
        self._label(again)
        self._do(spirv.BRANCH, header)
        self._label(ends)

    def wrap(self, inner: int) -> None:
        """Add the function of the entry point: another one, and the signal after it."""
        module, zero = self._module, self._constant(0)
        resetting, rest, signalling, merge = (module.next_id() for _ in range(4))
        void = module.type(spirv.VOID)
        self._begin(module.main)
        self._value(spirv.FUNCTION_CALL, void, inner)
        index, group = self._load(self._index), self._value(spirv.LOAD, self._triple, self._number)
        any_bits = index
        for axis in range(3):
            part = self._value(_EXTRACT, self._uint, group, axis)
            any_bits = self._value(_BIT_OR, self._uint, any_bits, part)
        self._branch_if(self._value(_EQUAL, self._bool, any_bits, zero), resetting, rest, rest)
        self._label(resetting)
        self._do(_ATOMIC_STORE, self._counter(RESET_WORD), self._scope, zero, zero)
        self._do(spirv.BRANCH, rest)
        self._label(rest)
        self._barrier()
        first = self._value(_EQUAL, self._bool, index, zero)
        self._branch_if(first, signalling, merge, merge)
        self._label(signalling)
        self._do(_MEMORY_BARRIER, self._scope, self._constant(self._memory))
        own, one = self._counter(OWN_WORD), self._constant(1)
        self._value(_ATOMIC_ADD, self._uint, own, self._scope, zero, one)
        self._do(spirv.BRANCH, merge)
        self._label(merge)
        self._end()

    # --- instructions ----------------------------------------------------------------------------

    def _begin(self, function: int = 0) -> int:
        module = self._module
        function, void = function or module.next_id(), module.type(spirv.VOID)
        simple = module.type(spirv.FUNCTION_TYPE, void)
        self._do(spirv.FUNCTION, void, function, 0, simple)
        self._label(module.next_id())
        return function

    def _end(self) -> None:
        self._do(spirv.RETURN)
        self._do(spirv.FUNCTION_END)
        self._module.insert(len(self._module.words), *self._code)
        self._code = []

    def _do(self, number: int, *operands: int) -> None:
        self._code.append(op(number, *operands))

    def _value(self, number: int, type_: int, *operands: int) -> int:
        made = self._module.next_id()
        self._do(number, type_, made, *operands)
        return made

    def _label(self, label: int) -> None:
        self._do(spirv.LABEL, label)

    def _branch_if(self, condition: int, yes: int, no: int, merge: int) -> None:
        self._do(spirv.SELECTION_MERGE, merge, 0)
        self._do(spirv.BRANCH_IF, condition, yes, no)

    def _barrier(self) -> None:
        scopes = self._constant(_WORKGROUP_SCOPE), self._scope
        self._do(_CONTROL_BARRIER, *scopes, self._constant(self._memory))

    def _constant(self, value: int) -> int:
        found = self._constants.get(value)
        if found is None:
            found = self._constants[value] = self._module.constant(self._uint, value)
        return found

    def _load(self, place: int) -> int:
        return self._value(spirv.LOAD, self._uint, place)

    def _chain(self, variable: int, *steps: int) -> int:
        return self._value(spirv.ACCESS_CHAIN, self._place, variable, *steps)

    def _word(self, number: int) -> int:
        """Return a word of the record."""
        return self._load(self._chain(self._flags, self._constant(0), self._constant(number)))

    def _counter(self, word: int) -> int:
        """Return the place of the counter that a word of the record names."""
        return self._chain(self._flags, self._constant(0), self._word(word))

    def _built_in(self, number: int, type_: int) -> int:
        """Return a built-in variable, which may exist only once."""
        module, wanted = self._module, [spirv.BUILT_IN, number]
        words = module.words
        for at in module.declared:
            if words[at] & 0xFFFF == spirv.DECORATE and words[at + 2 : at + 4].tolist() == wanted:
                return words[at + 1]
        made = module.new(spirv.VARIABLE, module.pointer(spirv.INPUT, type_), spirv.INPUT)
        module.mark(made, spirv.BUILT_IN, number)
        module.use(made, always=True)
        return made
