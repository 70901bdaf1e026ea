"""Cubes from a queue of work: one rank controls, the others work."""

import distwq


def cube(number):
    return number**3


def main(controller):
    for number in range(5):
        controller.submit_call("cube", (number,), module_name="__main__")
    total = sum(controller.get_next_result()[1] for _ in range(5))
    print(f"{distwq.size} ranks, cubes {total}")


if __name__ == "__main__":
    distwq.run(fun_name="main" if distwq.is_controller else None, module_name="__main__")
