"""The world around the service, in virtual time: engines, router, clients, clocks and what goes wrong with them.

Classification, admission, dispatcher, control loop, pools and ledgers in it are the real ones.
"""
