"""The half of Turnout that runs on a host: standard library only, Python 3.8 or newer, Linux.

It is packed into one file, sent once, and run as one resident process for each channel; it is never installed. The
modules, from the bottom up:

    wire        frames: a JSON header and raw bytes (both halves use it)
    linux       the few system calls that Python 3.8 does not wrap
    proc        what /proc says of processes: identity, family, who holds a job's cookie
    store       files that survive a power cut, and the layout of the root folder
    evidence    the kernel's own word on why something died
    jobs        the state of a job, read from its directory
    ending      ends a family of processes and proves it
    supervisor  the process that starts one job, waits for it and records its end
    logcap      keeps a log below its cap
    ready       watches for the moment a server answers
    quick       one command, bounded in time and output
    files       put and get
    probe       what the machine is
    worker      forks the above and carries their answers
    runner      processes that run quick commands one after another
    running     waits for workers, and for the supervisors of a launch
    watch       tells finished jobs, progress and growing logs
    slurm       what Slurm says of the jobs on a login node
    batch       gives a job to Slurm, and supervises it on the compute node
    serve       the loop that reads requests

Only relative imports: the package has another name inside the packed file.
"""
